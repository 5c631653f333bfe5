"""A span that costs a request little: the SDK's own takes 40 us to begin and end, and a request has twenty.

Ids, sampling, processors and exporters are the SDK's; only the recording in between is ours. A span belongs to one
task, so it needs no lock; values are checked by their types, not at run time.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from opentelemetry.context import Context
from opentelemetry.sdk.trace import Event, ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import Decision, SamplingResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags, get_current_span
from opentelemetry.util.types import Attributes, AttributeValue

_SAMPLED, _NOT_SAMPLED = TraceFlags(TraceFlags.SAMPLED), TraceFlags(TraceFlags.DEFAULT)


class LightSpans:
    """Makes the spans of one provider; ended ones go to `processor`.

    `scope` and `version` name the instrumentation, as for `get_tracer`.
    """

    def __init__(self, provider: TracerProvider, processor: SpanProcessor, scope: str, version: str) -> None:
        self._provider = provider
        self._processor = processor
        self._scope = InstrumentationScope(scope, version)

    def start(
        self, name: str, parent: Context, kind: SpanKind, attributes: dict[str, AttributeValue], start_ns: int
    ) -> LightSpan:
        """A span below `parent`; a root when that holds none. `start_ns`: ns since 1970."""
        above = get_current_span(parent).get_span_context()
        ids = self._provider.id_generator
        trace_id = above.trace_id if above.is_valid else ids.generate_trace_id()
        sampling = self._provider.sampler.should_sample(parent, trace_id, name, kind, attributes)
        context = SpanContext(trace_id, ids.generate_span_id(), False, _flags(sampling), sampling.trace_state)
        return LightSpan(self, name, context, above if above.is_valid else None, kind, attributes, start_ns)

    def finish(self, span: LightSpan, end_ns: int) -> None:
        """Hand an ended span to the processors."""
        self._processor.on_end(
            ReadableSpan(
                name=span.name,
                context=span.get_span_context(),
                parent=span.parent,
                resource=self._provider.resource,
                attributes=span.attributes,
                events=span.events,
                kind=span.kind,
                status=span.status,
                start_time=span.start_ns,
                end_time=end_ns,
                instrumentation_scope=self._scope,
            )
        )


class LightSpan(Span):
    """See LightSpans.start."""

    __slots__ = ("_context", "_ended", "_spans", "attributes", "events", "kind", "name", "parent", "start_ns", "status")

    def __init__(
        self,
        spans: LightSpans,
        name: str,
        context: SpanContext,
        parent: SpanContext | None,
        kind: SpanKind,
        attributes: dict[str, AttributeValue],
        start_ns: int,
    ) -> None:
        self._spans = spans
        self._context = context
        self._ended = False
        self.name = name
        self.parent = parent
        self.kind = kind
        self.attributes = attributes
        self.events: list[Event] = []
        self.start_ns = start_ns
        self.status = Status(StatusCode.UNSET)

    def get_span_context(self) -> SpanContext:
        return self._context

    def is_recording(self) -> bool:
        return self._context.trace_flags.sampled and not self._ended

    def set_attribute(self, key: str, value: AttributeValue) -> None:
        self.attributes[key] = tuple(value) if isinstance(value, list) else value  # as the SDK does: it won't change

    def set_attributes(self, attributes: Mapping[str, AttributeValue]) -> None:
        for key, value in attributes.items():
            self.set_attribute(key, value)

    def add_event(self, name: str, attributes: Attributes = None, timestamp: int | None = None) -> None:
        self.events.append(Event(name, attributes, timestamp or time.time_ns()))

    def update_name(self, name: str) -> None:
        self.name = name

    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        self.status = status if isinstance(status, Status) else Status(status, description)

    def record_exception(
        self,
        exception: BaseException,
        attributes: Attributes = None,
        timestamp: int | None = None,
        escaped: bool = False,
    ) -> None:
        """Nothing: an exception's text may hold what must not leave the process."""

    def end(self, end_time: int | None = None) -> None:
        if self.is_recording():
            self._spans.finish(self, end_time or time.time_ns())
        self._ended = True


def _flags(sampling: SamplingResult) -> TraceFlags:
    return _SAMPLED if sampling.decision is Decision.RECORD_AND_SAMPLE else _NOT_SAMPLED
