"""An OTLP/gRPC trace receiver of the tests' own: it knows the public protocol and nothing of this project."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage


@dataclass(frozen=True)
class Span:
    """One received span; times in ns since 1970."""

    trace_id: str
    span_id: str
    parent_id: str  # "" for a root
    name: str
    service: str
    instance: str
    kind: int
    start_ns: int
    end_ns: int
    attributes: Mapping[str, object]
    events: tuple[str, ...]
    error: bool

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns

    @property
    def stage(self) -> str:
        return str(self.attributes.get("tokenpath.stage", ""))


@dataclass
class OtlpReceiver(TraceServiceServicer):  # type: ignore[misc]
    """Keeps every span, and every request as it came, for searches of its bytes."""

    endpoint: str = ""
    spans: list[Span] = field(default_factory=list)
    raw: list[bytes] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def Export(self, request: ExportTraceServiceRequest, context: grpc.ServicerContext) -> ExportTraceServiceResponse:
        with self._lock:
            self.raw.append(request.SerializeToString())
            for resource_spans in request.resource_spans:
                resource = {pair.key: _value(pair.value) for pair in resource_spans.resource.attributes}
                for scope_spans in resource_spans.scope_spans:
                    self.spans += [_span(span, resource) for span in scope_spans.spans]
        return ExportTraceServiceResponse()

    def trace(self, trace_id: str) -> list[Span]:
        """The spans of one trace so far, oldest start first."""
        with self._lock:
            return sorted((span for span in self.spans if span.trace_id == trace_id), key=lambda span: span.start_ns)

    def everything(self) -> bytes:
        """All bytes received so far."""
        with self._lock:
            return b"".join(self.raw)


@contextmanager
def otlp_receiver() -> Iterator[OtlpReceiver]:
    """A receiver on a free loopback port."""
    receiver = OtlpReceiver()
    server = grpc.server(ThreadPoolExecutor(max_workers=2))
    add_TraceServiceServicer_to_server(receiver, server)
    receiver.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield receiver
    finally:
        server.stop(grace=None).wait()


def _span(span: SpanMessage, resource: Mapping[str, object]) -> Span:
    return Span(
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        name=span.name,
        service=str(resource.get("service.name", "")),
        instance=str(resource.get("service.instance.id", "")),
        kind=span.kind,
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        attributes={pair.key: _value(pair.value) for pair in span.attributes},
        events=tuple(event.name for event in span.events),
        error=span.status.code == 2,
    )


def _value(value: AnyValue) -> object:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    return getattr(value, kind) if kind else None
