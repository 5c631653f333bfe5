"""Which workers of a stack are there, and whether the rest of the stack has noticed."""

from __future__ import annotations

import asyncio
import json
import time

import grpc
import redis.asyncio

from tests.e2e.api import Api, Mode, script
from tests.e2e.metrics import metric
from tests.stack import RunningStack
from tokenpath.v1.router_pb2 import FleetRequest
from tokenpath.v1.router_pb2_grpc import RouterStub

WHOLE = Mode("chat", False)
STREAM = Mode("chat", True)
_NOTICED_S = 20.0
ALL = ("prefill-0", "decode-0", "decode-1")


async def workers_are(api: Api, *wanted: str) -> None:
    """Start and stop workers until exactly these serve, and requests to them need no second try."""
    stack = api.stack
    workers = [process for process in stack.record.processes if process.name.startswith(("prefill-", "decode-"))]
    alive = {worker.name for worker in workers if worker.alive}
    await asyncio.to_thread(stack.stop, *(alive - set(wanted)))
    if missing := sorted(set(wanted) - alive):
        await asyncio.to_thread(stack.start, *missing)
    give_up = time.monotonic() + _NOTICED_S
    while not (await _noticed(stack, set(wanted)) and await _serves(api)):
        assert time.monotonic() < give_up, f"not within {_NOTICED_S} s: {wanted} serve"
        await asyncio.sleep(0.1)


async def serves_again(api: Api, limit_s: float) -> float:
    """Ask until an answer comes; only 503 is accepted until then. How long it took, in seconds."""
    began = time.monotonic()
    while (answer := await api.ask(WHOLE, script(pieces=["x"]))).status != 200:
        assert answer.status == 503, answer.raw
        assert time.monotonic() - began < limit_s, answer.raw
        await asyncio.sleep(0.05)
    assert answer.text == "x"
    return time.monotonic() - began


def fallbacks(stack: RunningStack) -> float:
    """Requests of the gateway that went another way."""
    return metric(stack, "gateway", "tokenpath_gateway_fallbacks_total")


async def _noticed(stack: RunningStack, wanted: set[str]) -> bool:
    async with redis.asyncio.from_url(stack.state_url, decode_responses=True) as client:
        leases = [json.loads(await client.get(f"tp:fleet:{name.partition('-')[0]}:{name}") or "{}") for name in wanted]
    lives = {(lease.get("worker_id"), lease.get("generation")) for lease in leases}
    async with grpc.aio.insecure_channel(stack.address("router")) as channel:
        fleet = await RouterStub(channel).Fleet(FleetRequest(), timeout=5)
    in_scheduler = metric(stack, "scheduler", "tokenpath_fleet_workers")
    return (
        {(worker.worker_id, worker.generation) for worker in fleet.workers} == lives
        and not fleet.stale
        and in_scheduler == len(wanted)
    )


async def _serves(api: Api) -> bool:
    """Channels to a worker that was away wait a little before they connect, and the router before it trusts it."""

    def other_ways() -> float:
        return fallbacks(api.stack) + metric(api.stack, "router", "tokenpath_router_unreachable_total")

    before = other_ways()
    answers = await asyncio.gather(*(api.ask(WHOLE, script(pieces=["x"])) for _ in range(6)))
    return all(answer.status == 200 for answer in answers) and other_ways() == before
