"""SIGTERM under a running stream: it ends well, the process ends with status 0, and soon."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from tests.e2e.api import Api, script
from tests.e2e.faults.at_rest import at_rest
from tests.e2e.faults.conftest import DRAIN_S
from tests.e2e.faults.ending import terminated
from tests.e2e.faults.fleet import ALL, STREAM, serves_again, workers_are
from tests.e2e.ledger import settled_row
from tests.e2e.metrics import metric
from tests.eventually import eventually

SLACK_S = 5.0
TOKENS = 60  # 1.2 s of streaming
SERVICES = ("auth", "router", "scheduler", *ALL, "detokenizer", "gateway")


async def streaming(api: Api, tokens: int) -> asyncio.Task[None]:
    """A stream of 20 ms a token that has begun, and its check."""

    async def check() -> None:
        answer = await api.ask(STREAM, script(pieces=["x"], repeat=tokens, itl_ms=20), max_tokens=2000)
        assert (answer.text, answer.finish_reason) == ("x" * tokens, "stop")
        answers.append(answer.request_id)

    answers: list[str] = []
    task = asyncio.create_task(check())
    await eventually(lambda: metric(api.stack, "gateway", "tokenpath_gateway_open_streams") == 1, "it streams")
    return task


async def test_everything_behind_the_gateway_drains(api: Api) -> None:
    """All at once, but for auth, which is needed to settle the stream."""
    await workers_are(api, *ALL)
    stream = await streaming(api, TOKENS)
    names = [name for name in SERVICES if name not in ("gateway", "auth")]
    endings = await terminated(api.stack, *names)
    await stream
    assert {ending.name: ending.exit_status for ending in endings} == dict.fromkeys(names, 0)
    assert max(ending.seconds for ending in endings) < DRAIN_S + SLACK_S
    assert [ending.exit_status for ending in await terminated(api.stack, "auth")] == [0]
    await asyncio.to_thread(api.stack.start, "auth", *names)
    await serves_again(api, 5.0)
    await at_rest(api.stack)


async def test_the_gateway_drains(api: Api) -> None:
    """A running stream ends; who comes now is not served any more; the bill is written."""
    await workers_are(api, *ALL)
    stream = await streaming(api, TOKENS)
    ending = asyncio.create_task(terminated(api.stack, "gateway"))
    while not await turned_away(api):
        assert not stream.done(), "the gateway took newcomers to the end"
        await asyncio.sleep(0.02)
    await stream
    [end] = await ending
    assert end.exit_status == 0
    assert end.seconds < DRAIN_S + SLACK_S
    await asyncio.to_thread(api.stack.start, "gateway")
    await serves_again(api, 5.0)


async def turned_away(api: Api) -> bool:
    """Whether a newcomer is not served: 503, or no connection."""
    try:
        return (await api.ask(STREAM, script(pieces=["x"]))).status == 503
    except httpx.TransportError:
        return True


@pytest.mark.parametrize("name", ["gateway", "decode-0"])
async def test_a_stream_that_outlasts_the_drain_gets_an_error_event(api: Api, name: str) -> None:
    await workers_are(api, "prefill-0", "decode-0")
    raw = b""
    async with api.open(STREAM, script(pieces=["x"], repeat=2000, itl_ms=20), max_tokens=2000) as response:
        ending: asyncio.Task[object] | None = None
        async for piece in response.aiter_raw():
            raw += piece
            ending = ending or asyncio.create_task(terminated(api.stack, name))
    assert ending is not None
    [end] = await ending
    assert b'data: {"error":{' in raw
    assert b"[DONE]" not in raw
    assert (end.exit_status, end.seconds < DRAIN_S + SLACK_S) == (0, True)
    row = await settled_row(api.stack, response.headers["x-tokenpath-request-id"])
    assert row["outcome"] == "failed"
    await asyncio.to_thread(api.stack.start, name)
    await serves_again(api, 5.0)
