"""A span as this receiver keeps it, and how it is read from OTLP."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1 import trace_pb2

KINDS = ("unspecified", "internal", "server", "client", "producer", "consumer")
STATUSES = ("unset", "ok", "error")

Attributes = Mapping[str, Any]


@dataclass(frozen=True)
class Event:
    name: str
    time_ns: int
    attributes: Attributes


@dataclass(frozen=True)
class Link:
    trace_id: str
    span_id: str
    attributes: Attributes


@dataclass(frozen=True)
class Span:
    """Ids are lower-case hex; `parent_id` is empty for a root. Times in nanoseconds since 1970."""

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    kind: str
    start_ns: int
    end_ns: int
    status: str
    status_message: str
    attributes: Attributes
    resource: Attributes
    events: tuple[Event, ...]
    links: tuple[Link, ...]

    @property
    def service(self) -> str:
        return str(self.resource.get("service.name", "unknown"))

    @property
    def instance(self) -> str:
        return str(self.resource.get("service.instance.id", ""))


class ReceivedSpan(NamedTuple):
    """A span as it came. Reading one costs 50 times as much as keeping it, and few are ever looked at."""

    span: trace_pb2.Span
    resource: Resource

    @property
    def trace_id(self) -> str:
        return self.span.trace_id.hex()

    def has(self, keys: Container[str], value: str) -> bool:
        """Whether one of these attributes has this value."""
        return any(pair.key in keys and pair.value.string_value == value for pair in self.span.attributes)


def received_spans(request: ExportTraceServiceRequest) -> Iterator[ReceivedSpan]:
    """Every span of an export. A span without a valid trace or span id is skipped, as OTLP asks for."""
    for group in request.resource_spans:
        for scope in group.scope_spans:
            for span in scope.spans:
                if len(span.trace_id) == 16 and len(span.span_id) == 8:
                    yield ReceivedSpan(span, group.resource)


def read(received: ReceivedSpan) -> Span:
    """The span as it is shown."""
    span = received.span
    return Span(
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        name=span.name,
        kind=KINDS[span.kind] if span.kind < len(KINDS) else KINDS[0],
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        status=STATUSES[span.status.code] if span.status.code < len(STATUSES) else STATUSES[0],
        status_message=span.status.message,
        attributes=_attributes(span.attributes),
        resource=_attributes(received.resource.attributes),
        events=tuple(Event(event.name, event.time_unix_nano, _attributes(event.attributes)) for event in span.events),
        links=tuple(Link(link.trace_id.hex(), link.span_id.hex(), _attributes(link.attributes)) for link in span.links),
    )


def _attributes(pairs: Iterable[KeyValue]) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> Any:
    match value.WhichOneof("value"):
        case "array_value":
            return [_value(item) for item in value.array_value.values]
        case "kvlist_value":
            return _attributes(value.kvlist_value.values)
        case "bytes_value":
            return value.bytes_value.hex()
        case None:
            return None
        case kind:
            return getattr(value, kind)
