"""OpenTelemetry of one process: stages become spans, spans go to the OTLP endpoint of the environment.

Standard variables rule: OTEL_EXPORTER_OTLP_ENDPOINT (or ..._TRACES_ENDPOINT), OTEL_EXPORTER_OTLP_PROTOCOL,
OTEL_TRACES_SAMPLER, OTEL_BSP_*. Without an endpoint no span is recorded or exported, but trace ids still flow.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SynchronousMultiSpanProcessor, TracerProvider
from opentelemetry.trace import SpanKind
from opentelemetry.util.types import AttributeValue as SpanAttribute
from prometheus_client import CollectorRegistry

from services.platform.light_span import LightSpans
from services.platform.span_export import CountingSpanProcessor, new_exporter
from services.platform.stage import AttributeValue, Stage

VERSION = "0.1.0"
_CLOSE_S = 3.0


class Telemetry:
    """Makes stages for one service instance. Make it after any fork; close it last."""

    def __init__(self, service: str, instance: str, registry: CollectorRegistry) -> None:
        self.service = service
        self.instance = instance
        processors = SynchronousMultiSpanProcessor()  # type: ignore[no-untyped-call]
        self._provider = TracerProvider(
            active_span_processor=processors,
            resource=Resource.create(
                {
                    "service.name": service,
                    "service.namespace": "tokenpath",
                    "service.version": VERSION,
                    "service.instance.id": instance,
                }
            ),
            shutdown_on_exit=False,
        )
        if os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
            self._provider.add_span_processor(CountingSpanProcessor(new_exporter(), registry))
        self._spans = LightSpans(self._provider, processors, "tokenpath", VERSION)

    def stage(
        self,
        name: str,
        *,
        parent: Context,
        kind: SpanKind = SpanKind.INTERNAL,
        rpc: str = "",
        span_name: str = "",
        address: str = "",
        attributes: Mapping[str, AttributeValue] | None = None,
    ) -> Stage:
        """Start a stage below `parent`.

        `rpc` is the full method name ("tokenpath.v1.Auth/Authorize") of a CLIENT or SERVER stage and names the
        span; `address` is the peer's host:port of a CLIENT stage; else the span is called `span_name` or `name`.
        """
        facts: dict[str, SpanAttribute] = {"tokenpath.stage": name, **(attributes or {})}
        if rpc:
            facts |= {"rpc.system.name": "grpc", "rpc.method": rpc}
        if address:
            host, _, port = address.rpartition(":")
            facts |= {"server.address": host, "server.port": int(port) if port.isdecimal() else 0}
        # Both clocks are read at the same moment: spans are placed by the one and measured by the other.
        started_unix_ns, started_ns = time.time_ns(), time.perf_counter_ns()
        span = self._spans.start(rpc or span_name or name, parent, kind, facts, started_unix_ns)
        is_rpc_server = bool(rpc) and kind is SpanKind.SERVER
        return Stage(name, self.service, self.instance, span, started_unix_ns, started_ns, is_rpc_server=is_rpc_server)

    def close(self) -> None:
        """Flush what is queued, for at most 3 s: a dead collector must not hold up a shutdown."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(_CLOSE_S)
