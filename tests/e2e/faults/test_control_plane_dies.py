"""auth, router or scheduler are killed: new requests get a clear 503 at once, running streams go on."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.e2e.api import Api, script
from tests.e2e.faults.at_rest import at_rest
from tests.e2e.faults.broken_stream import refused
from tests.e2e.faults.fleet import ALL, STREAM, serves_again, workers_are
from tests.e2e.ledger import settled_row
from tests.e2e.metrics import metric
from tests.eventually import eventually

RUNNING = script(pieces=["x"], repeat=60, itl_ms=20)


@pytest.mark.parametrize("victim", ["auth", "router", "scheduler"])
async def test_a_control_service_is_killed(api: Api, victim: str) -> None:
    await workers_are(api, *ALL)
    running = asyncio.create_task(api.ask(STREAM, RUNNING, max_tokens=100))
    await eventually(lambda: metric(api.stack, "gateway", "tokenpath_gateway_open_streams") == 1, "it streams")
    api.stack.kill(victim)
    await refused(api, script(pieces=["x"]))
    assert (await api.http.get("/health")).status_code == 200
    await readiness_is(api, 503)
    answer = await running
    assert (answer.text, answer.finish_reason) == ("x" * 60, "stop")
    await asyncio.to_thread(api.stack.start, victim)
    await serves_again(api, 5.0)
    row = await settled_row(api.stack, answer.request_id)
    assert (row["outcome"], row["completion_tokens"]) == ("done", "61")
    await at_rest(api.stack)
    await readiness_is(api, 200)


async def readiness_is(api: Api, status: int) -> None:
    """The gateway looks at the fleet once a second."""
    give_up = time.monotonic() + 3.0
    while (await api.http.get("/health/ready")).status_code != status:
        assert time.monotonic() < give_up, f"readiness is not {status}"
        await asyncio.sleep(0.05)
