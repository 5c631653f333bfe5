"""B028, B083: clients that close their connection, wherever their request is."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import pytest
import redis.asyncio

from tests.e2e.api import Api, script
from tests.e2e.faults.at_rest import at_rest, busy, log_lines
from tests.e2e.faults.conftest import SLOTS
from tests.e2e.faults.fleet import ALL, STREAM, WHOLE, workers_are
from tests.e2e.faults.raw_http import Connection, connected, request_bytes
from tests.e2e.faults.span_census import SpanCensus
from tests.e2e.ledger import LEDGER
from tests.e2e.metrics import metric, samples
from tests.e2e.otlp_receiver import OtlpReceiver
from tests.eventually import eventually
from tests.stack import RunningStack

ALL_SLOTS = 2 * SLOTS
CROWD = 2 * ALL_SLOTS
PATHS = ("disaggregated", "aggregated")


def prompt(number: int, **fields: object) -> str:
    return f"{number} " + script(pieces=["x"], repeat=2000, **fields)


@asynccontextmanager
async def crowd(api: Api, **fields: object) -> AsyncIterator[list[Connection]]:
    """Twice as many streams as there are slots, of 2000 tokens each."""
    async with AsyncExitStack() as open_connections:
        connections = [await open_connections.enter_async_context(connected(api.stack)) for _ in range(CROWD)]
        for number, connection in enumerate(connections):
            body = api.body(STREAM, prompt(number, **fields), max_tokens=2000)
            await connection.send(request_bytes(api.stack, body))
        yield connections


def leave(connection: Connection, politely: bool) -> None:
    """With FIN or with RST."""
    if politely:
        connection.writer.close()
    else:
        connection.reset()


def all_leave(connections: list[Connection]) -> None:
    for number, connection in enumerate(connections):
        leave(connection, politely=number % 2 == 0)


@dataclass(frozen=True)
class Bill:
    """What the ledger charges, and what the gateway knows of: (rows, prompt tokens, completion tokens) each."""

    stack: RunningStack
    before: tuple[int, int, int]
    counted_before: tuple[int, int, int]

    @staticmethod
    async def now(stack: RunningStack) -> Bill:
        return Bill(stack, await _charged(stack), _counted(stack))

    async def check(self, at_most: int) -> int:
        """Every request that got a slot has one row with its tokens, nobody has two. Returns how many there were."""
        rows, prompt, completion = (
            now - before for now, before in zip(await _charged(self.stack), self.before, strict=True)
        )
        slots, *tokens = (now - before for now, before in zip(_counted(self.stack), self.counted_before, strict=True))
        assert [prompt, completion] == tokens
        assert rows <= slots  # a slot may be granted to someone who has just left
        assert rows <= at_most
        return rows


async def _charged(stack: RunningStack) -> tuple[int, int, int]:
    async with redis.asyncio.from_url(stack.state_url, decode_responses=True) as client:
        rows = [fields for _, fields in await client.xrange(LEDGER)]
    assert len({row["request_id"] for row in rows}) == len(rows)
    return len(rows), sum(int(row["prompt_tokens"]) for row in rows), sum(int(row["completion_tokens"]) for row in rows)


def _counted(stack: RunningStack) -> tuple[int, int, int]:
    values = samples(stack.metrics_url("gateway"))
    tokens = [int(values.get(f'tokenpath_gateway_tokens_total{{type="{kind}"}}', 0)) for kind in ("input", "output")]
    return int(metric(stack, "scheduler", "tokenpath_scheduler_admitted_total")), tokens[0], tokens[1]


@pytest.fixture
def quiet_logs(stack: RunningStack) -> Iterator[list[int]]:
    """Put into the list how many requests are aborted: the logs may grow by one line for each."""
    allowed: list[int] = []
    before = log_lines(stack)
    yield allowed
    grown = [line for name, lines in log_lines(stack).items() for line in lines[len(before[name]) :]]
    assert len(grown) <= sum(allowed), grown[:20]
    assert not [line for line in grown if "Traceback" in line or " ERROR " in line]


async def test_b028_in_the_queue_and_in_decode(api: Api, quiet_logs: list[int]) -> None:
    """As many decode as there are slots, as many wait; all leave."""
    await workers_are(api, *ALL)
    await at_rest(api.stack)
    bill = await Bill.now(api.stack)
    quiet_logs.append(CROWD)
    async with crowd(api, itl_ms=40) as connections:
        await eventually(
            lambda: (
                busy(api.stack).get("scheduler tokenpath_scheduler_slots_used") == ALL_SLOTS
                and busy(api.stack).get("scheduler tokenpath_scheduler_queue_length") == ALL_SLOTS
                and busy(api.stack).get("gateway tokenpath_gateway_open_streams") == ALL_SLOTS
            ),
            "slots and queue are full",
        )
        all_leave(connections)
        await at_rest(api.stack)
    assert await bill.check(at_most=CROWD) >= ALL_SLOTS
    assert (await api.ask(WHOLE, script(pieces=["x"]))).text == "x"


async def test_b028_in_prefill(api: Api, quiet_logs: list[int]) -> None:
    await workers_are(api, *ALL)
    await at_rest(api.stack)
    bill = await Bill.now(api.stack)
    quiet_logs.append(CROWD)
    async with crowd(api, ttft_ms=60_000) as connections:
        await eventually(
            lambda: busy(api.stack).get("prefill-0 vllm:num_requests_running") == SLOTS, "the prefill worker is full"
        )
        all_leave(connections)
        await at_rest(api.stack)
    await bill.check(at_most=CROWD)
    assert (await api.ask(WHOLE, script(pieces=["x"]))).text == "x"


async def test_b028_b083_at_random(api: Api, otlp: OtlpReceiver, quiet_logs: list[int]) -> None:
    """Hundreds leave within a random part of a second, while others are served: all is released, billed and traced."""
    await workers_are(api, *ALL)
    await at_rest(api.stack)
    bill, census = await Bill.now(api.stack), SpanCensus(api.stack, otlp)
    tries, whole = 360, 40
    quiet_logs.append(tries)
    dice = random.Random(28)

    async def abandon(number: int, delay_s: float, ttft_ms: int, path: str) -> None:
        async with gate, connected(api.stack) as connection:
            body = api.body(STREAM, prompt(number, ttft_ms=ttft_ms, itl_ms=5), n=1 + number % 2, max_tokens=2000)
            await connection.send(request_bytes(api.stack, body, {"x-tokenpath-mode": path}))
            await asyncio.sleep(delay_s)
            leave(connection, politely=number % 3 == 0)

    async def stay(number: int) -> None:
        async with gate:
            answer = await api.ask(STREAM, f"{number} " + script(pieces=["x"], repeat=number, itl_ms=1))
            assert answer.text == "x" * number

    gate = asyncio.Semaphore(CROWD)
    visits = [
        abandon(number, dice.uniform(0, 0.4) ** 2 * 2, dice.choice([0, 0, 30, 500]), dice.choice(PATHS))
        for number in range(tries)
    ]
    visits += [stay(number) for number in range(1, whole + 1)]
    dice.shuffle(visits)
    await asyncio.gather(*visits)
    await at_rest(api.stack)
    assert await bill.check(at_most=tries + whole) > whole
    assert (await api.ask(WHOLE, script(pieces=["x"]))).text == "x"
    await census.check()
