"""Export of spans that costs requests nothing: bounded queue, short timeout, every lost span counted."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from prometheus_client import CollectorRegistry, Counter

MAX_QUEUED_SPANS = 4096
_EXPORT_TIMEOUT_S = 2
_SCHEDULE_DELAY_MS = 500.0


def new_exporter() -> SpanExporter:
    """The OTLP exporter that OTEL_EXPORTER_OTLP_PROTOCOL asks for: grpc (default) or http/protobuf."""
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get(
        "OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"
    )
    # Imported on demand: each brings a client library of its own.
    if protocol == "http/protobuf":
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

        return HttpExporter(timeout=_EXPORT_TIMEOUT_S)
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

    return GrpcExporter(timeout=_EXPORT_TIMEOUT_S)


class CountingSpanProcessor(BatchSpanProcessor):
    """A batch processor that counts spans lost to a full queue or to an exporter that failed."""

    def __init__(
        self,
        exporter: SpanExporter,
        registry: CollectorRegistry,
        *,
        max_queue_size: int = MAX_QUEUED_SPANS,
        schedule_delay_ms: float | None = None,
    ) -> None:
        # A dead collector is told by the counter; the exporter's own lines would flood the log.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        dropped = Counter(
            "tokenpath_spans_dropped_total", "Spans that were not delivered", ["reason"], registry=registry
        )
        self._max_queued = max_queue_size
        self._queue_full = dropped.labels("queue_full")
        self._counting = _CountingExporter(exporter, dropped.labels("export_failed"))
        if schedule_delay_ms is None and "OTEL_BSP_SCHEDULE_DELAY" not in os.environ:
            schedule_delay_ms = _SCHEDULE_DELAY_MS
        super().__init__(self._counting, max_queue_size=max_queue_size, schedule_delay_millis=schedule_delay_ms)

    def on_end(self, span: ReadableSpan) -> None:
        """Queue a span; when the queue is full the oldest one is lost."""
        if not (span.context and span.context.trace_flags.sampled):
            return
        if self._counting.queued >= self._max_queued:
            self._queue_full.inc()
        else:
            self._counting.queued += 1
        super().on_end(span)


class _CountingExporter(SpanExporter):
    def __init__(self, inner: SpanExporter, failed: Counter) -> None:
        self.queued = 0  # spans handed to the processor and not yet to the exporter; near enough without a lock
        self._inner = inner
        self._failed = failed

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.queued = max(0, self.queued - len(spans))
        result = self._inner.export(spans)
        if result is not SpanExportResult.SUCCESS:
            self._failed.inc(len(spans))
        return result

    def shutdown(self) -> None:
        self._inner.shutdown()
