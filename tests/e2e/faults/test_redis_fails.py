"""Either Redis is killed or frozen under the stack, and comes back: no restart of anything else is needed."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import pytest

from tests.e2e.api import Api, script
from tests.e2e.faults.at_rest import at_rest
from tests.e2e.faults.fleet import ALL, STREAM, WHOLE, serves_again, workers_are
from tests.e2e.ledger import settled_row
from tests.e2e.metrics import metric, samples
from tests.eventually import eventually
from tests.stack import RunningStack

LONGEST_WAIT_S = 5.0  # KV_WAIT_S of the prefill and of the decode worker, and a busy machine


@contextmanager
def outage(stack: RunningStack, name: str, kind: str) -> Iterator[None]:
    """A Redis that is dead or frozen while the block runs."""
    stack.kill(name, signal.SIGKILL if kind == "killed" else signal.SIGSTOP)
    try:
        yield
    finally:
        if kind == "frozen":
            stack.kill(name, signal.SIGCONT)
        else:
            stack.start(name)


def fresh_prompt() -> str:
    """Some pages that no cache holds."""
    return f"{uuid4().hex} " * 8 + script(text="one two three four five")


def pages(stack: RunningStack, result: str) -> float:
    return sum(
        samples(stack.metrics_url(worker)).get(f'tokenpath_kv_pages_total{{result="{result}"}}', 0)
        for worker in ("decode-0", "decode-1")
    )


@pytest.mark.parametrize("kind", ["killed", "frozen"])
async def test_the_page_store_fails(api: Api, kind: str) -> None:
    """Text and usage stay the same; the lost pages are counted; it works again by itself."""
    await workers_are(api, *ALL)
    failures = metric(api.stack, "prefill-0", "tokenpath_kv_publish_failures_total")
    with outage(api.stack, "redis-kv", kind):
        began = time.monotonic()
        answers = await asyncio.gather(*(api.ask(STREAM, fresh_prompt()) for _ in range(6)))
        assert time.monotonic() - began < LONGEST_WAIT_S
    for answer in answers:
        assert (answer.text, answer.finish_reason) == ("one two three four five", "stop")
        assert answer.usage is not None
        assert answer.usage["completion_tokens"] == 6
    assert metric(api.stack, "prefill-0", "tokenpath_kv_publish_failures_total") == failures + 6
    fetched = pages(api.stack, "fetched")
    began = time.monotonic()
    while pages(api.stack, "fetched") == fetched:
        assert time.monotonic() - began < 5.0, "pages travel again"
        assert (await api.ask(WHOLE, fresh_prompt())).text == "one two three four five"


@pytest.mark.parametrize("kind", ["killed", "frozen"])
async def test_the_state_fails(api: Api, kind: str) -> None:
    """New requests get 503 within seconds, a running stream ends well, and its row is written when Redis is back."""
    await workers_are(api, *ALL)
    running = asyncio.create_task(api.ask(STREAM, script(pieces=["x"], repeat=40, itl_ms=20)))
    await eventually(lambda: metric(api.stack, "gateway", "tokenpath_gateway_open_streams") == 1, "it streams")
    with outage(api.stack, "redis-state", kind):
        began = time.monotonic()
        refusals = await asyncio.gather(*(api.ask(WHOLE, script(pieces=["x"])) for _ in range(6)))
        assert time.monotonic() - began < 3.0
        for refusal in refusals:
            assert (refusal.status, refusal.error["code"]) == (503, "service_unavailable")
            assert int(refusal.headers["retry-after"]) >= 1
        answer = await running
        assert answer.text == "x" * 40
        for _ in range(60):
            if (await api.http.get("/health/ready")).status_code == 503:
                break
            await asyncio.sleep(0.05)
        else:
            raise AssertionError("still ready without its keys")
    await serves_again(api, 5.0)
    row = await settled_row(api.stack, answer.request_id)
    assert (row["outcome"], row["completion_tokens"]) == ("done", "41")
    await at_rest(api.stack, 10.0)
    assert "Traceback" not in api.stack.logs("auth")
