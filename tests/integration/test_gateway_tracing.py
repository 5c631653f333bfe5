"""Spans and journeys of real requests: one tree, numbers that agree, and no word of a prompt."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import httpx
import pytest
import pytest_asyncio
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from services.platform.failures import Failure
from tests.eventually import eventually
from tests.fakes import OTHER_KEY, RunningGateway, endless, failing, running_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")

SECRET = "xyzzy-marker-of-a-prompt"


class Traced:
    """A gateway whose spans stay in memory."""

    def __init__(self, gateway: RunningGateway) -> None:
        self.gateway = gateway
        self.exporter = InMemorySpanExporter()
        gateway.runtime.telemetry._provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        return self.exporter.get_finished_spans()

    def root(self) -> ReadableSpan:
        (root,) = [span for span in self.spans if span.kind is SpanKind.SERVER]
        return root

    def children(self) -> list[ReadableSpan]:
        root = self.root().context
        assert root is not None
        return [span for span in self.spans if span.parent is not None and span.parent.span_id == root.span_id]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def module_traced() -> AsyncIterator[Traced]:
    async with running_gateway() as gateway:
        yield Traced(gateway)


@pytest.fixture
def traced(module_traced: Traced) -> Traced:
    module_traced.gateway.fleet.reset()
    module_traced.exporter.clear()
    return module_traced


async def test_b086_one_tree_with_a_span_for_every_stage(traced: Traced) -> None:
    answer = await traced.gateway.chat(stream=True, temperature=0.5, max_tokens=9, seed=3)
    root, children = traced.root(), traced.children()
    assert root.name == f"chat {traced.gateway.fleet.router.candidates[0].decode.model}"
    names = {str((span.attributes or {})["tokenpath.stage"]) for span in children}
    calls = {"auth", "route", "queue", "prefill", "stream", "settle"}
    assert names == calls | {"receive", "tokenize", "release", "respond"}
    assert {span.name for span in children if span.kind is SpanKind.CLIENT} == {
        "tokenpath.v1.Auth/Authorize",
        "tokenpath.v1.Router/Route",
        "tokenpath.v1.Scheduler/Admit",
        "vllm.grpc.engine.VllmEngine/Generate",
        "tokenpath.v1.Detokenizer/Stream",
        "tokenpath.v1.Auth/Settle",
    }
    attributes = dict(root.attributes or {})
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "tokenpath",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.max_tokens": 9,
        "gen_ai.request.seed": 3,
        "gen_ai.usage.output_tokens": 4,
        "gen_ai.response.finish_reasons": ("stop",),
        "http.response.status_code": 200,
    }
    assert {key: attributes[key] for key in expected} == expected
    assert root.context is not None
    assert answer.headers["x-trace-id"] == f"{root.context.trace_id:032x}"


async def test_b086_the_callers_trace_goes_on_and_a_malformed_one_starts_anew(traced: Traced) -> None:
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    good = await traced.gateway.chat({"traceparent": f"00-{trace_id}-b7ad6b7169203331-01"})
    assert good.headers["x-trace-id"] == trace_id
    fleet = traced.gateway.fleet
    assert all(trace_id in parent for parent in (*fleet.auth.traces, *fleet.detokenizer.traces))
    for bad in ("00-zz-b7ad6b7169203331-01", "", "00-" + "0" * 32 + "-b7ad6b7169203331-01"):
        answer = await traced.gateway.chat({"traceparent": bad})
        assert answer.status_code == 200
        assert answer.headers["x-trace-id"] not in (trace_id, "0" * 32)


async def test_b086_tries_are_sibling_spans(traced: Traced) -> None:
    traced.gateway.fleet.detokenizer.scripts["decode-0:1"] = failing(Failure(grpc.StatusCode.UNAVAILABLE, "gone"))
    await traced.gateway.chat()
    tries = [span for span in traced.children() if span.name == "tokenpath.v1.Detokenizer/Stream"]
    assert [span.status.status_code for span in tries] == [StatusCode.ERROR, StatusCode.UNSET]
    assert traced.root().status.status_code is StatusCode.UNSET


async def test_b080_b083_a_client_that_leaves_ends_every_span_as_cancelled(
    traced: Traced, caplog: pytest.LogCaptureFixture
) -> None:
    traced.gateway.fleet.detokenizer.script = endless
    request = asyncio.create_task(traced.gateway.chat(stream=True))
    await eventually(lambda: traced.gateway.fleet.detokenizer.running, "a stream runs")
    request.cancel()
    await eventually(lambda: any(span.kind is SpanKind.SERVER for span in traced.spans), "the root span ends")
    stream = next(span for span in traced.children() if span.name.endswith("/Stream"))
    for span in (stream, traced.root()):
        assert (span.attributes or {})["rpc.response.status_code"] == "CANCELLED"
        assert span.status.status_code is StatusCode.UNSET
    assert "detach" not in caplog.text


async def test_b085_no_word_of_a_prompt_or_answer_is_in_spans_or_logs(
    traced: Traced, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "services")
    question: list[Any] = [{"role": "user", "content": SECRET}]
    await traced.gateway.chat(messages=question, stop=[SECRET], user=SECRET)
    await traced.gateway.chat(messages=question, temperature=9)
    await traced.gateway.chat(model=SECRET)
    traced.gateway.fleet.detokenizer.script = failing(Failure(grpc.StatusCode.INTERNAL, "broken"))
    await traced.gateway.chat(messages=question, stream=True)
    told = "".join(span.to_json() for span in traced.spans) + caplog.text
    assert SECRET not in told
    assert "Paris" not in told
    assert traced.gateway.http.headers["authorization"].split()[1] not in told


async def quiet_journey(gateway: RunningGateway) -> tuple[httpx.Response, Any]:
    """Of up to ten requests the first that nothing else on this machine interrupted for a millisecond."""
    for _ in range(10):
        answer = await gateway.chat(stream=True)
        journey = (await gateway.http.get(f"/v1/journeys/{answer.headers['x-tokenpath-request-id']}")).json()
        if journey["total"]["parts"][-1]["ms"] <= 1.0:
            break
    return answer, journey


@pytest.mark.parametrize("aggregated", [False, True])
async def test_the_journeys_parts_add_up(traced: Traced, aggregated: bool) -> None:
    gateway = traced.gateway
    if aggregated:
        gateway.fleet.aggregated()
    gateway.fleet.prefill.delay_s = 0.02
    answer, journey = await quiet_journey(gateway)
    for whole, split in ((journey["ttft_ms"], journey["ttft"]), (journey["total_ms"], journey["total"])):
        parts = {part["name"]: part["ms"] for part in split["parts"]}
        assert sum(parts.values()) == pytest.approx(whole, abs=1e-6)
        assert sum(part["share"] for part in split["parts"]) == pytest.approx(1)
        assert all(value >= 0 for value in parts.values())
        assert parts["unaccounted"] <= max(1.0, 0.02 * whole)
    assert journey["ttft_ms"] <= journey["total_ms"]
    ttft = {part["name"]: part["ms"] for part in journey["ttft"]["parts"]}
    assert ("prefill.compute" in ttft) is not aggregated
    assert aggregated or ttft["prefill.compute"] >= 8
    assert (journey["outcome"], journey["cost_usd"]) == ("done", pytest.approx(1.234e-6))
    assert journey["mode"] == ("aggregated" if aggregated else "disaggregated")
    stages = [stage["stage"] for stage in journey["stages"]]
    assert {"auth", "receive", "tokenize", "route", "queue", "decode", "detokenize", "respond", "settle"} <= set(stages)
    assert journey["decision"]["policy"] == "round_robin"
    assert journey["trace_id"] == answer.headers["x-trace-id"]


async def test_a_journey_is_found_by_the_bodys_id_and_only_by_its_tenant(traced: Traced) -> None:
    gateway = traced.gateway
    body_id = (await gateway.chat()).json()["id"]
    assert (await gateway.http.get(f"/v1/journeys/{body_id}")).status_code == 200
    other = {"authorization": f"Bearer {OTHER_KEY}"}
    assert (await gateway.http.get(f"/v1/journeys/{body_id}", headers=other)).status_code == 404
    assert (await gateway.http.get("/v1/journeys/nope")).json()["error"]["code"] == "journey_not_found"


async def test_a_failed_request_has_a_journey_that_says_where(traced: Traced) -> None:
    gateway = traced.gateway
    gateway.fleet.scheduler.failure = Failure(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", code="queue_full")
    answer = await gateway.chat()
    journey = (await gateway.http.get(f"/v1/journeys/{answer.headers['x-tokenpath-request-id']}")).json()
    assert (journey["outcome"], journey["cost_usd"], journey["ttft_ms"]) == ("failed", None, None)
    (queue,) = [stage for stage in journey["stages"] if stage["stage"] == "queue"]
    assert queue["attributes"]["error"] == "queue_full"
