"""Workers and the detokenizer are killed under requests: an honest end, or the same text from elsewhere."""

from __future__ import annotations

import asyncio

from tests.e2e.api import Api, script
from tests.e2e.faults.broken_stream import break_stream, refused
from tests.e2e.faults.conftest import SLOTS
from tests.e2e.faults.fleet import ALL, STREAM, WHOLE, fallbacks, serves_again, workers_are
from tests.e2e.ledger import settled_row
from tests.e2e.metrics import engine_is_idle, metric
from tests.eventually import eventually

LONG = script(pieces=["x"], repeat=500, itl_ms=20)
SHORT = script(pieces=["x"], repeat=5)
AGGREGATED = {"x-tokenpath-mode": "aggregated"}


def slow_start(milliseconds: int) -> str:
    return script(pieces=["x"], repeat=5, ttft_ms=milliseconds)


async def running_on(api: Api, count: int, *workers: str) -> str:
    """The one of these workers that runs so many sequences, as soon as there is one."""
    found: list[str] = []

    def look() -> bool:
        found[:] = [each for each in workers if metric(api.stack, each, "vllm:num_requests_running") >= count]
        return bool(found)

    await eventually(look, f"{count} sequences run on one of {workers}")
    return found[0]


class TestB006:
    """B006: after the first byte a death is an error event and the end of the stream, and never looks whole."""

    async def test_decode_is_killed_after_three_tokens_and_there_is_no_spare(self, api: Api) -> None:
        await workers_are(api, "prefill-0", "decode-0")
        broken = await break_stream(api, LONG, 3, lambda: api.stack.kill("decode-0"))
        assert broken.check()["code"] == "service_unavailable"
        row = await settled_row(api.stack, broken.request_id)
        assert row["outcome"] == "failed"
        assert int(row["completion_tokens"]) == broken.tokens >= 3
        await refused(api, SHORT)
        await asyncio.to_thread(api.stack.start, "decode-0")
        await serves_again(api, 5.0)

    async def test_the_detokenizer_is_killed(self, api: Api) -> None:
        await workers_are(api, *ALL)
        broken = await break_stream(api, LONG, 3, lambda: api.stack.kill("detokenizer"))
        assert broken.check()["code"] == "service_unavailable"
        row = await settled_row(api.stack, broken.request_id)
        assert row["outcome"] == "failed"
        assert int(row["completion_tokens"]) == broken.tokens >= 3
        for worker in ALL:
            await eventually(lambda worker=worker: engine_is_idle(api.stack, worker), f"{worker} is idle", 3.0)
        await refused(api, SHORT)
        await asyncio.to_thread(api.stack.start, "detokenizer")
        await serves_again(api, 5.0)


async def test_decode_is_killed_while_it_computes_the_prompt(api: Api) -> None:
    """Before the first byte the spare takes over, once, and the client sees nothing of it."""
    await workers_are(api, *ALL)
    before = fallbacks(api.stack)
    asked = asyncio.create_task(api.ask(STREAM, slow_start(700), AGGREGATED))
    killed = await running_on(api, 1, "decode-0", "decode-1")
    api.stack.kill(killed)
    answer = await asked
    assert (answer.text, answer.finish_reason) == ("xxxxx", "stop")
    assert answer.headers["x-inference-pod"] == ({"decode-0", "decode-1"} - {killed}).pop()
    assert fallbacks(api.stack) == before + 1
    row = await settled_row(api.stack, answer.request_id)
    assert (row["outcome"], row["attempts"], row["completion_tokens"]) == ("done", "2", "6")


async def test_decode_is_killed_while_prefill_computes(api: Api) -> None:
    """The spare takes the same hand-off: no prompt is computed twice."""
    await workers_are(api, *ALL)
    prompts = metric(api.stack, "prefill-0", "vllm:request_success_total")
    count = SLOTS + SLOTS // 2  # more than fit on one decode worker
    asked = [asyncio.create_task(api.ask(STREAM, f"{number} {slow_start(700)}")) for number in range(count)]
    await running_on(api, SLOTS, "prefill-0")
    before = fallbacks(api.stack)
    api.stack.kill("decode-0")
    for answer in await asyncio.gather(*asked):
        assert answer.text == "xxxxx"
        assert answer.headers["x-inference-pod"] == "decode-1"
    assert 0 < fallbacks(api.stack) - before <= SLOTS
    assert metric(api.stack, "prefill-0", "vllm:request_success_total") == prompts + count


async def test_prefill_is_killed_while_it_computes(api: Api) -> None:
    """The decode worker computes the prompt, counted; afterwards too, until prefill is back."""
    await workers_are(api, *ALL)
    before = fallbacks(api.stack)
    asked = asyncio.create_task(api.ask(STREAM, slow_start(700)))
    await running_on(api, 1, "prefill-0")
    api.stack.kill("prefill-0")
    answer = await asked
    assert (answer.text, answer.finish_reason) == ("xxxxx", "stop")
    assert fallbacks(api.stack) == before + 1
    assert (await settled_row(api.stack, answer.request_id))["attempts"] == "1"
    without = await asyncio.gather(*(api.ask(WHOLE, f"{number} {SHORT}") for number in range(4)))
    assert [answer.text for answer in without] == ["xxxxx"] * 4
    await workers_are(api, *ALL)
    journey = await api.journey((await api.ask(WHOLE, SHORT)).request_id)
    assert "prefill" in {stage["stage"] for stage in journey["stages"]}
