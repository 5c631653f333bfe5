"""B076: a client's time limit holds over all hops; no limit stays none; one that is over does no work."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from tests.e2e.api import MODES, Api, Mode, script, sse_events
from tests.e2e.faults.at_rest import at_rest
from tests.e2e.faults.conftest import SLOTS
from tests.e2e.faults.fleet import ALL, STREAM, WHOLE, workers_are
from tests.e2e.ledger import ledger_length, settled_row
from tests.e2e.metrics import engine_is_idle, metric
from tests.e2e.otlp_receiver import OtlpReceiver
from tests.eventually import eventually

LIMIT_S = 1.0
LIMIT = {"x-request-timeout-ms": "1000"}
AFTER_S = 0.5  # one step, the way back to the client, and a busy machine


async def test_b076_in_decode(api: Api, otlp: OtlpReceiver) -> None:
    """An error event at the limit; decode stops at most a step later; every hop's span ends about then."""
    await workers_are(api, *ALL)
    began, raw = time.monotonic(), b""
    async with api.open(STREAM, script(pieces=["x"], repeat=2000, itl_ms=20), LIMIT, max_tokens=2000) as response:
        async for piece in response.aiter_raw():
            raw += piece
    assert LIMIT_S - 0.1 < time.monotonic() - began < LIMIT_S + AFTER_S
    *chunks, last = (json.loads(event) for event in sse_events(raw))
    assert last["error"]["code"] == "timeout"
    assert len(chunks) > 10
    assert all(choice["finish_reason"] is None for chunk in chunks for choice in chunk["choices"])
    for worker in ALL:
        await eventually(lambda worker=worker: engine_is_idle(api.stack, worker), f"{worker} is idle", AFTER_S)
    row = await settled_row(api.stack, response.headers["x-tokenpath-request-id"])
    assert row["outcome"] == "expired"
    trace_id = response.headers["x-trace-id"]
    await eventually(lambda: any(not span.parent_id for span in otlp.trace(trace_id)), "the trace is there")
    spans = {span.stage: span for span in otlp.trace(trace_id)}
    assert {"prefill", "detokenize", "decode"} <= spans.keys()
    assert all(span.duration_ns < (LIMIT_S + AFTER_S) * 1e9 for span in spans.values())


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("path", ["disaggregated", "aggregated"])
async def test_b076_before_the_first_byte(api: Api, mode: Mode, path: str) -> None:
    await workers_are(api, *ALL)
    began = time.monotonic()
    headers = {"x-request-timeout-ms": "300", "x-tokenpath-mode": path}
    answer = await api.ask(mode, script(pieces=["x"], ttft_ms=20_000), headers)
    assert (answer.status, answer.error["code"]) == (504, "timeout")
    assert 0.25 < time.monotonic() - began < 0.3 + AFTER_S
    await at_rest(api.stack)
    row = await settled_row(api.stack, answer.request_id)
    assert (row["outcome"], row["completion_tokens"]) == ("expired", "0")


async def test_b076_in_the_queue(api: Api) -> None:
    """Whoever's time ends while it waits leaves the queue unserved and unbilled."""
    await workers_are(api, *ALL)
    busy = [
        asyncio.create_task(api.ask(STREAM, f"{number} " + script(pieces=["x"], repeat=60, itl_ms=20), n=SLOTS))
        for number in range(2)
    ]
    await eventually(lambda: metric(api.stack, "scheduler", "tokenpath_scheduler_slots_used") == 2 * SLOTS, "it's full")
    rows = await ledger_length(api.stack)
    answers = await asyncio.gather(
        *(api.ask(WHOLE, script(pieces=["x"]), {"x-request-timeout-ms": "200"}) for _ in "123")
    )
    assert [answer.status for answer in answers] == [504] * 3
    assert metric(api.stack, "scheduler", "tokenpath_scheduler_queue_length") == 0
    for answer in await asyncio.gather(*busy):
        assert answer.texts == ["x" * 60] * SLOTS
    await at_rest(api.stack)
    assert await ledger_length(api.stack) == rows + 2


@pytest.mark.parametrize("left", ["0", "-1000"])
async def test_b076_already_over(api: Api, left: str) -> None:
    calls = metric(api.stack, "auth", "tokenpath_auth_calls_total")
    answer = await api.ask(STREAM, script(pieces=["x"]), {"x-request-timeout-ms": left})
    assert (answer.status, answer.error["code"]) == (504, "timeout")
    assert metric(api.stack, "auth", "tokenpath_auth_calls_total") == calls


async def test_b076_no_limit_is_none(api: Api) -> None:
    """Not even a long silence before the first token ends a request without a limit."""
    await workers_are(api, *ALL)
    answer = await api.ask(STREAM, script(pieces=["x"], ttft_ms=2500))
    assert answer.text == "x"
