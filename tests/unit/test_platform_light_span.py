"""Spans of our own making: what processors see must be what the SDK's would have shown."""

from __future__ import annotations

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SynchronousMultiSpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased, Sampler
from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

from services.platform.light_span import LightSpans


def recorder(sampler: Sampler) -> tuple[LightSpans, TracerProvider, InMemorySpanExporter]:
    processors = SynchronousMultiSpanProcessor()
    provider = TracerProvider(
        sampler=sampler, resource=Resource({"service.name": "x"}), active_span_processor=processors
    )
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return LightSpans(provider, processors, "tokenpath", "1"), provider, exporter


def test_a_light_span_says_what_the_sdks_own_says():
    spans, provider, exporter = recorder(ALWAYS_ON)
    tracer = provider.get_tracer("tokenpath", "1")
    for span in (
        tracer.start_span("a", context=Context(), kind=SpanKind.CLIENT, attributes={"k": 1}, start_time=5),
        spans.start("a", Context(), SpanKind.CLIENT, {"k": 1}, 5),
    ):
        span.set_attribute("reasons", ["stop"])
        span.add_event("first_token", {"n": 2}, 7)
        span.set_status(Status(StatusCode.ERROR, "INTERNAL"))
        span.update_name("b")
        span.end(9)
    theirs, ours = exporter.get_finished_spans()
    for name in ("name", "kind", "start_time", "end_time", "parent", "resource", "instrumentation_scope"):
        assert getattr(ours, name) == getattr(theirs, name)
    assert dict(ours.attributes) == dict(theirs.attributes)
    assert [(e.name, dict(e.attributes), e.timestamp) for e in ours.events] == [("first_token", {"n": 2}, 7)]
    assert (ours.status.status_code, ours.status.description) == (theirs.status.status_code, theirs.status.description)
    assert ours.context.trace_flags.sampled


def test_children_share_the_trace_and_end_once():
    spans, _, exporter = recorder(ALWAYS_ON)
    parent = spans.start("parent", Context(), SpanKind.SERVER, {}, 1)
    child = spans.start("child", set_span_in_context(parent, Context()), SpanKind.INTERNAL, {}, 2)
    child.end(3)
    child.end(4)
    [seen] = exporter.get_finished_spans()
    assert seen.context.trace_id == parent.get_span_context().trace_id
    assert seen.parent.span_id == parent.get_span_context().span_id
    assert seen.end_time == 3


def test_what_is_not_sampled_reaches_no_processor_but_keeps_its_ids():
    spans, _, exporter = recorder(ParentBased(ALWAYS_OFF))
    root = spans.start("root", Context(), SpanKind.SERVER, {}, 1)
    child = spans.start("child", set_span_in_context(root, Context()), SpanKind.INTERNAL, {}, 1)
    for span in (child, root):
        span.end(2)
    assert exporter.get_finished_spans() == ()
    assert child.get_span_context().trace_id == root.get_span_context().trace_id
    assert not child.get_span_context().trace_flags.sampled
