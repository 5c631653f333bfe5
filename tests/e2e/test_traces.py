"""Traces of the whole stack, taken by an OTLP receiver that is no part of it."""

from __future__ import annotations

import asyncio
import json
import random
from uuid import uuid4

import pytest

from tests.e2e.api import MODES, Api, Mode, script
from tests.e2e.ledger import settled_row
from tests.e2e.otlp_receiver import OtlpReceiver
from tests.e2e.spans import APART, CLIENT, PATH, SERVER, Trace, whole_trace
from tests.eventually import eventually

STREAM = Mode("chat", True)
HELLO = script(pieces=["x", " DE", "F"], ttft_ms=10, itl_ms=5)
CLOCK_NS = 1_000_000  # two processes read one wall clock, but not at the same moment as their stopwatches
# On a busy machine a process can lose the CPU for longer than this anywhere; most requests must do without.
GAP_SHARE, GAP_NS, MOST = 0.02, 1_000_000, 0.8


def check_nesting(trace: Trace) -> None:
    """Every span lies inside its parent."""
    for parent in trace.spans:
        for child in trace.children(parent):
            assert child.start_ns >= parent.start_ns - CLOCK_NS, (parent.name, child.name)
            assert child.end_ns <= parent.end_ns + CLOCK_NS, (parent.name, child.name)


@pytest.mark.parametrize("mode", MODES, ids=str)
async def test_one_root_with_every_hop_below_it(api: Api, otlp: OtlpReceiver, mode: Mode) -> None:
    answer = await api.ask(mode, HELLO)
    trace = await whole_trace(otlp, answer.headers["x-trace-id"], APART)
    operation = {"chat": "chat", "completions": "text_completion"}[mode.endpoint]
    assert trace.root.name == f"{operation} {api.model}"
    assert (trace.root.kind, trace.root.service, trace.root.parent_id) == (SERVER, "gateway", "")
    assert {span.stage for span in trace.children(trace.root)} >= {
        "auth", "receive", "tokenize", "route", "queue", "prefill", "stream", "settle", "respond",
    }  # fmt: skip
    (detokenize,) = trace.stage("detokenize")
    (decode,) = trace.stage("decode")
    (generate,) = trace.children(detokenize)
    assert decode in trace.children(generate)
    assert trace.stage("kv_publish")
    assert trace.stage("kv_fetch")
    check_nesting(trace)
    assert not any(span.error for span in trace.spans)
    for span in trace.spans:
        if span.kind in (SERVER, CLIENT) and span is not trace.root:
            assert span.attributes["rpc.system.name"] == "grpc"
            assert span.attributes["rpc.method"] == span.name


async def test_spans_add_up(api: Api, otlp: OtlpReceiver) -> None:
    """The root's children cover all of it but 2% or 1 ms; the spans say what the journey says."""
    covered = []
    prompt = script(pieces=["x", " DE", "F"], ttft_ms=150, itl_ms=50)
    for mode_name, services in (("disaggregated", APART), ("aggregated", PATH)):
        answers = await asyncio.gather(*(api.ask(mode, prompt, {"x-tokenpath-mode": mode_name}) for mode in MODES))
        for answer in answers:
            trace = await whole_trace(otlp, answer.headers["x-trace-id"], services)
            check_nesting(trace)
            covered.append(trace.uncovered_ns() <= max(GAP_NS, GAP_SHARE * trace.root.duration_ns))
            journey = await api.journey(answer.request_id)
            assert trace.root.duration_ns / 1e6 == pytest.approx(journey["total_ms"], abs=GAP_NS / 1e6)
            for stage in ("auth", "route", "queue", "kv_publish", "kv_fetch", "decode", "detokenize", "settle"):
                reported = [entry["duration_ms"] for entry in journey["stages"] if entry["stage"] == stage]
                spans = [span.duration_ns / 1e6 for span in trace.stage(stage) if span.kind != CLIENT]
                assert spans == pytest.approx(reported, abs=1e-3), stage
    assert sum(covered) >= MOST * len(covered)


async def test_tokens_in_spans_are_the_usage_and_the_ledger(api: Api, otlp: OtlpReceiver) -> None:
    answer = await api.ask(STREAM, HELLO + " again" * 40, n=2)
    usage = answer.usage
    assert usage is not None
    trace = await whole_trace(otlp, answer.headers["x-trace-id"], APART)
    row = await settled_row(api.stack, answer.request_id)
    said = trace.root.attributes
    assert said["gen_ai.usage.input_tokens"] == usage["prompt_tokens"] == int(row["prompt_tokens"])
    assert said["gen_ai.usage.output_tokens"] == usage["completion_tokens"] == int(row["completion_tokens"]) == 8
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    assert said["gen_ai.usage.cache_read.input_tokens"] == cached == int(row["cached_tokens"])
    assert trace.stage("detokenize", SERVER)[0].attributes["tokenpath.detokenize.tokens"] == 8
    # The first token of each choice is made by prefill.
    assert trace.stage("decode")[0].attributes["tokenpath.decode.tokens"] == 6
    assert trace.stage("settle", SERVER)[0].attributes["tokenpath.settle.row_id"]


class TestB086:
    """B086: the caller's trace goes on; without one, or with a malformed one, a new trace begins."""

    async def test_with_a_traceparent(self, api: Api, otlp: OtlpReceiver) -> None:
        trace_id, caller = uuid4().hex, uuid4().hex[:16]
        headers = {"traceparent": f"00-{trace_id}-{caller}-01", "tracestate": "them=1"}
        answer = await api.ask(STREAM, HELLO, headers)
        assert answer.headers["x-trace-id"] == trace_id
        trace = await whole_trace(otlp, trace_id, APART, caller)
        assert trace.root.parent_id == caller

    async def test_without_one(self, api: Api, otlp: OtlpReceiver) -> None:
        ids = {(await api.ask(STREAM, HELLO)).headers["x-trace-id"] for _ in range(3)}
        assert len(ids) == 3
        for trace_id in ids:
            await whole_trace(otlp, trace_id, APART)

    async def test_malformed(self, api: Api, otlp: OtlpReceiver) -> None:
        good, caller = uuid4().hex, uuid4().hex[:16]
        for malformed in (
            "x", "", f"00-{good}-{caller}", f"00-{'0' * 32}-{caller}-01", f"00-{good}-{'0' * 16}-01",
            f"ff-{good}-{caller}-01", f"00-{good[:-1]}-{caller}-01", f"00-{good}-{caller}-0g", "x" * 5000,
        ):  # fmt: skip
            answer = await api.ask(STREAM, HELLO, {"traceparent": malformed})
            assert answer.text == "x DEF"
            assert answer.headers["x-trace-id"] != good
            assert (await whole_trace(otlp, answer.headers["x-trace-id"], APART)).root.parent_id == ""

    async def test_a_caller_who_does_not_sample(self, api: Api, otlp: OtlpReceiver) -> None:
        quiet, loud = uuid4().hex, uuid4().hex
        for trace_id, flag in ((quiet, "00"), (loud, "01")):
            answer = await api.ask(STREAM, HELLO, {"traceparent": f"00-{trace_id}-{uuid4().hex[:16]}-{flag}"})
            assert answer.headers["x-trace-id"] == trace_id
        await asyncio.sleep(0.3)  # longer than any service keeps its spans back
        assert otlp.trace(loud)
        assert not otlp.trace(quiet)

    async def test_tries_are_siblings(self, api: Api, otlp: OtlpReceiver) -> None:
        answer = await api.ask(STREAM, script(pieces=["x"], fail_after=0), {"x-tokenpath-mode": "aggregated"})
        assert answer.status == 500
        trace_id = answer.headers["x-trace-id"]
        # The two decode workers export each in their own time.
        await eventually(
            lambda: len(Trace(otlp.trace(trace_id)).stage("generate", SERVER)) == 2, "both tries were served"
        )
        trace = await whole_trace(otlp, trace_id, PATH)
        tries = trace.stage("stream", CLIENT)
        assert len(tries) == 2
        assert all(span.parent_id == trace.root.span_id and span.error for span in tries)
        served = trace.stage("generate", SERVER)
        assert {span.attributes["tokenpath.attempt"] for span in served} == {1, 2}
        assert len({span.instance for span in served}) == 2
        assert trace.root.error


class TestB083:
    """B083: every span that begins ends, also when the client leaves; then it says CANCELLED."""

    @pytest.mark.parametrize("after", [1, 3, 20])
    async def test_leaving_a_stream(self, api: Api, otlp: OtlpReceiver, after: int) -> None:
        prompt = script(pieces=["x"], repeat=400, itl_ms=5)
        async with api.open(STREAM, prompt, max_tokens=400) as response:
            events = response.aiter_raw()
            for _ in range(after):
                await anext(events)
        trace = await whole_trace(otlp, response.headers["x-trace-id"], APART)
        for stage in ("request", "stream", "detokenize", "generate", "decode"):
            last = trace.stage(stage)[-1]
            assert last.attributes["rpc.response.status_code"] == "CANCELLED", stage
            assert not last.error

    async def test_leaving_at_any_moment(self, api: Api, otlp: OtlpReceiver) -> None:
        """Cut off anywhere between the first byte sent and the last one due: no span lacks its parent or its end."""
        trace_ids = [uuid4().hex for _ in range(30)]
        callers = [uuid4().hex[:16] for _ in trace_ids]
        dice = random.Random(83)

        async def cut(trace_id: str, caller: str) -> None:
            headers = {"traceparent": f"00-{trace_id}-{caller}-01"}
            try:
                async with asyncio.timeout(dice.uniform(0.002, 0.15)):
                    await api.ask(STREAM, script(pieces=["x"], repeat=40, ttft_ms=30, itl_ms=5), headers)
            except TimeoutError:
                pass

        for start in range(0, len(trace_ids), 10):
            some = range(start, start + 10)
            await asyncio.gather(*(cut(trace_ids[number], callers[number]) for number in some))
        met = 0
        for trace_id, caller in zip(trace_ids, callers, strict=True):
            if otlp.trace(trace_id) or await arrives(otlp, trace_id):
                met += 1
                trace = await whole_or_cut(otlp, trace_id, caller)
                assert trace.root.stage == "request"
        assert met >= 20


async def arrives(otlp: OtlpReceiver, trace_id: str) -> bool:
    """A request cut off before its head was read has no trace."""
    await asyncio.sleep(0.3)
    return bool(otlp.trace(trace_id))


async def whole_or_cut(otlp: OtlpReceiver, trace_id: str, caller: str) -> Trace:
    """Without orphans. The call that was being made when the client left may never have reached its service."""
    for _ in range(100):
        trace = Trace(otlp.trace(trace_id), caller)
        roots = [span for span in trace.spans if span.parent_id == caller]
        if len(roots) == 1 and not trace.orphans() and len(trace.unanswered()) <= 1:
            return trace
        await asyncio.sleep(0.05)
    raise AssertionError([(s.service, s.name, s.stage, s.span_id[:4], s.parent_id[:4], s.kind) for s in trace.spans])


class TestB085:
    """B085: no prompt, no answer and no key in any span or log, whatever becomes of the request."""

    async def test_success_refusal_and_failure(self, api: Api, otlp: OtlpReceiver) -> None:
        said, asked = f"answer{uuid4().hex}", f"prompt{uuid4().hex}"
        last = None
        for mode in MODES:
            ok = await api.ask(mode, f"{asked} " + script(text=said), user=asked, max_tokens=200)
            assert ok.text == said
            failed = await api.ask(mode, f"{asked} " + script(text=said, fail_after=3), stop=[asked])
            assert failed.status == (200 if mode.stream else 500)
            refused = [
                await api.ask(mode, f"{asked} SCRIPT:{{{said}}}"),
                await api.ask(mode, f"{asked} " + script(pieces=[said])),
                await api.ask(mode, asked, temperature=asked),
                await api.ask(mode, asked, stop=[said, said, said, said, said]),
                await api.ask(mode, asked, model=asked),
                await api.ask(mode, asked * 20_000),
                await api.send(mode.endpoint, json.dumps(api.body(mode, asked)).encode()[:-3]),
                await api.send(mode.endpoint, b"\xff" + asked.encode()),
            ]
            assert all(400 <= answer.status < 500 for answer in refused)
            last = ok
        wrong = f"tp-{uuid4().hex}"
        assert (await api.ask(STREAM, asked, {"authorization": f"Bearer {wrong}"})).status == 401
        assert last is not None
        await whole_trace(otlp, last.headers["x-trace-id"], APART)
        everything = otlp.everything()
        logs = {process.name: api.stack.logs(process.name) for process in api.stack.record.processes}
        assert len(logs) >= 9
        for secret in (said, asked, wrong, api.stack.api_key):
            assert secret.encode() not in everything
            for name, log in logs.items():
                assert secret not in log, name
