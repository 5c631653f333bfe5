"""The Redis client that all services share."""

from __future__ import annotations

import asyncio

import pytest
import redis.exceptions

from services.platform.redis import connect
from tests.redis_server import redis_server


async def test_a_cancel_is_never_lost() -> None:
    """B083: whenever it comes. A task that went on after its cancel would be waited for without end."""

    async def ask_for_ever() -> None:
        while True:
            await client.ping()

    with redis_server() as server:
        client = connect(server.url)
        await client.ping()
        for moment in range(40):
            task = asyncio.create_task(ask_for_ever())
            for _ in range(moment):
                await asyncio.sleep(0)
            task.cancel()
            done, _ = await asyncio.wait({task}, timeout=1)
            assert done, f"the cancel after {moment} turns of the loop was lost"
            assert task.cancelled()
        assert await client.ping()
        await client.aclose()


async def test_a_server_that_takes_nothing_is_a_timeout() -> None:
    """What fits into no buffer is given up after the time limit, and the connection is not used again."""

    async def read_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    server = await asyncio.start_server(read_nothing, "127.0.0.1", 0)
    client = connect(f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0", timeout_s=0.2)
    async with asyncio.timeout(5):
        with pytest.raises(redis.exceptions.TimeoutError):
            await client.set("key", b"x" * 64_000_000)
    await client.aclose()
    server.close()
