"""Stages are spans and reports in one; a dead collector costs nothing but counted drops."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Iterator

import grpc
import pytest
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from prometheus_client import CollectorRegistry

from services.platform.failures import Failure
from services.platform.span_export import MAX_QUEUED_SPANS
from services.platform.telemetry import Telemetry


@pytest.fixture
def telemetry(monkeypatch: pytest.MonkeyPatch) -> Iterator[Telemetry]:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    made = Telemetry("gateway", "gateway-0", CollectorRegistry())
    yield made
    made.close()


@pytest.fixture
def spans(telemetry: Telemetry) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    telemetry._provider.add_span_processor(SimpleSpanProcessor(exporter))
    return exporter


def finished(spans: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in spans.get_finished_spans()}


def test_span_and_report_say_the_same(telemetry: Telemetry, spans: InMemorySpanExporter) -> None:
    with telemetry.stage("prefill", parent=Context(), rpc="a.B/C", kind=SpanKind.SERVER) as stage:
        with stage.part("compute"):
            time.sleep(0.002)
        stage.tokens, stage.cached_tokens, stage.bytes = 5, 3, 700
        stage.note("worker", "prefill-0")
        report = stage.report()
        time.sleep(0.002)  # what follows the report is not part of the stage
    span = finished(spans)["a.B/C"]
    assert span.end_time is not None
    assert span.start_time is not None
    assert (span.start_time, span.end_time - span.start_time) == (report.start_unix_ns, report.duration_ns)
    assert report.parts[0].name == "compute"
    assert 2_000_000 <= report.parts[0].duration_ns <= report.duration_ns
    assert (report.stage, report.service, report.instance) == ("prefill", "gateway", "gateway-0")
    assert (report.tokens, report.cached_tokens, report.bytes) == (5, 3, 700)
    assert report.attributes["worker"] == "prefill-0"
    assert span.attributes is not None
    assert span.attributes["tokenpath.prefill.worker"] == "prefill-0"
    assert span.attributes["rpc.response.status_code"] == "OK"


def test_children_hang_below_their_stage(telemetry: Telemetry, spans: InMemorySpanExporter) -> None:
    with (
        telemetry.stage("root", parent=Context()) as root,
        telemetry.stage("child", parent=root.context) as child,
    ):
        pass
    made = finished(spans)
    assert made["child"].parent is not None
    assert made["child"].parent.span_id == made["root"].context.span_id
    assert child.trace_id == root.trace_id


@pytest.mark.parametrize(
    ("error", "status", "is_error"),
    [
        (Failure(grpc.StatusCode.INVALID_ARGUMENT, "the secret prompt"), "INVALID_ARGUMENT", False),
        (Failure(grpc.StatusCode.UNAVAILABLE, "the secret prompt"), "UNAVAILABLE", True),
        (ValueError("the secret prompt"), "INTERNAL", True),
        (asyncio.CancelledError(), "CANCELLED", False),
        (GeneratorExit(), "CANCELLED", False),
        (TimeoutError(), "DEADLINE_EXCEEDED", True),
    ],
)
def test_b085_errors_are_named_and_their_text_is_not_exported(
    telemetry: Telemetry, spans: InMemorySpanExporter, error: BaseException, status: str, is_error: bool
) -> None:
    with (
        pytest.raises(type(error)),
        telemetry.stage("s", parent=Context(), rpc="a.B/C", kind=SpanKind.SERVER),
    ):
        raise error
    span = finished(spans)["a.B/C"]
    assert span.attributes is not None
    assert span.attributes["rpc.response.status_code"] == status
    assert (span.status.status_code is StatusCode.ERROR) == is_error
    assert "secret" not in span.to_json()


async def test_b080_b083_streams_cut_by_the_client_end_their_spans_with_the_right_parents(
    telemetry: Telemetry, spans: InMemorySpanExporter, caplog: pytest.LogCaptureFixture
) -> None:
    async def stream(parent: Context, name: str) -> AsyncIterator[int]:
        with telemetry.stage(name, parent=parent) as stage:
            for number in range(10):
                with telemetry.stage(f"{name}.{number}", parent=stage.context):
                    yield number

    async def request(number: int) -> None:
        with telemetry.stage(f"request{number}", parent=Context()) as root:
            items = stream(root.context, f"stream{number}")
            async for item in items:
                await asyncio.sleep(0)
                if number % 2 and item == 4:
                    break
            # another task ends the generator, as a server does when a client has left
            await asyncio.create_task(items.aclose())  # type: ignore[attr-defined]

    await asyncio.gather(*(request(number) for number in range(200)))
    made = finished(spans)
    assert sum(name.startswith("request") for name in made) == 200
    for number in range(200):
        parent = made[f"stream{number}"].parent
        assert parent is not None
        assert parent.span_id == made[f"request{number}"].context.span_id
        assert made[f"stream{number}"].attributes["rpc.response.status_code"] == ("CANCELLED" if number % 2 else "OK")  # type: ignore[index]
    assert "detach" not in caplog.text


def test_b082_a_collector_that_swallows_everything_costs_nothing_but_counted_drops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as black_hole:  # accepts, never answers
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{black_hole.getsockname()[1]}")
        registry = CollectorRegistry()
        telemetry = Telemetry("gateway", "gateway-0", registry)
        wanted = MAX_QUEUED_SPANS + 3000
        for _ in range(wanted):
            telemetry.stage("s", parent=Context()).end()
        dropped = registry.get_sample_value("tokenpath_spans_dropped_total", {"reason": "queue_full"})
        started = time.monotonic()
        telemetry.close()
        assert time.monotonic() - started < 5
    assert dropped is not None
    assert 0 < dropped <= wanted - MAX_QUEUED_SPANS
