"""What the ledger holds, read from Redis as an accountant would: without asking the service that wrote it."""

from __future__ import annotations

import asyncio
import time

import redis.asyncio

from tests.stack import RunningStack

LEDGER = "tp:ledger"
_SETTLED_S = 5.0


async def ledger_rows(stack: RunningStack, request_id: str) -> list[dict[str, str]]:
    """Every row of a request, oldest first."""
    async with redis.asyncio.from_url(stack.state_url, decode_responses=True) as client:
        rows = await client.xrange(LEDGER)
    return [fields for _, fields in rows if fields["request_id"] == request_id]


async def settled_row(stack: RunningStack, request_id: str) -> dict[str, str]:
    """The one row of a request, which may still be on its way."""
    give_up = time.monotonic() + _SETTLED_S
    while not (rows := await ledger_rows(stack, request_id)):
        assert time.monotonic() < give_up, f"no ledger row of {request_id} within {_SETTLED_S} s"
        await asyncio.sleep(0.02)
    assert len(rows) == 1, rows
    return rows[0]


async def ledger_length(stack: RunningStack) -> int:
    """Rows in the ledger."""
    async with redis.asyncio.from_url(stack.state_url) as client:
        return int(await client.xlen(LEDGER))
