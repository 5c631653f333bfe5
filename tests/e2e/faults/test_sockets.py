"""B030: connections that are reset anywhere, bodies that are cut, sockets that fall silent."""

from __future__ import annotations

import asyncio
import json
import os
import random
from contextlib import AsyncExitStack

import psutil

from tests.e2e.api import Api, script
from tests.e2e.faults.at_rest import at_rest
from tests.e2e.faults.fleet import ALL, STREAM, WHOLE, workers_are
from tests.e2e.faults.raw_http import connected, request_bytes
from tests.eventually import eventually
from tests.stack import RunningStack

AT_A_TIME = 64
RSS_SLACK = 16 << 20
POOL = 32  # connections to Redis stay open; a service has at most so many


def services(stack: RunningStack) -> dict[str, int]:
    return {each.name: each.pid for each in stack.record.processes if not each.name.startswith("redis")}


def open_files(stack: RunningStack) -> dict[str, int]:
    return {name: len(os.listdir(f"/proc/{pid}/fd")) for name, pid in services(stack).items()}


def memory(stack: RunningStack) -> dict[str, int]:
    return {name: psutil.Process(pid).memory_info().rss for name, pid in services(stack).items()}


def threads(stack: RunningStack) -> dict[str, int]:
    return {name: psutil.Process(pid).num_threads() for name, pid in services(stack).items()}


async def reset_many(api: Api, count: int, dice: random.Random) -> None:
    """Connections that send a random part of a request, or all of it and read a random part of its answer."""
    gate = asyncio.Semaphore(AT_A_TIME)

    async def one(number: int) -> None:
        body = api.body(STREAM, f"{number} " + script(pieces=["x"], repeat=300, itl_ms=1), max_tokens=300)
        whole = request_bytes(api.stack, body)
        offset, unread = dice.randrange(len(whole)), dice.randrange(4000)
        asks = number % 4 == 0
        async with gate, connected(api.stack) as connection:
            await connection.send(whole if asks else whole[:offset])
            if asks:
                async with asyncio.timeout(10):
                    await connection.reader.read(1)
                    await connection.reader.read(unread)
            connection.reset()

    await asyncio.gather(*(one(number) for number in range(count)))
    await at_rest(api.stack)


async def test_b030_a_thousand_resets_leave_nothing_behind(api: Api) -> None:
    await workers_are(api, *ALL)
    pids, dice = services(api.stack), random.Random(30)
    await reset_many(api, 200, dice)  # what grows once (pools, caches, threads) has grown then
    files, used, running = open_files(api.stack), memory(api.stack), threads(api.stack)
    await reset_many(api, 1000, dice)
    await eventually(
        lambda: all(now <= files[name] + POOL for name, now in open_files(api.stack).items()),
        f"open files are back at about {files}",
        5.0,
    )
    assert open_files(api.stack)["gateway"] <= files["gateway"] + 4
    grown = {name: now - used[name] for name, now in memory(api.stack).items() if now - used[name] > RSS_SLACK}
    assert not grown
    assert all(now <= running[name] + 2 for name, now in threads(api.stack).items())
    assert all(psutil.pid_exists(pid) for pid in pids.values())
    assert (await api.ask(WHOLE, script(pieces=["x"]))).text == "x"


async def test_b030_bodies_that_end_in_the_middle(api: Api) -> None:
    """The client closes its side in the middle of the JSON: its connection is closed, and nothing was begun."""
    await workers_are(api, *ALL)
    whole = request_bytes(api.stack, api.body(STREAM, script(pieces=["x"])))
    body_begins = whole.index(b"\r\n\r\n") + 4
    for offset in range(body_begins, len(whole), (len(whole) - body_begins) // 8):
        async with connected(api.stack) as connection:
            await connection.send(whole[:offset])
            connection.writer.write_eof()
            async with asyncio.timeout(5):
                answer = await connection.reader.read()
            assert b" 200 " not in answer
    await at_rest(api.stack)


async def test_b030_sockets_that_fall_silent(api: Api) -> None:
    """Half-open clients: they neither send nor read nor close. Others are served; theirs end with their deadline."""
    await workers_are(api, *ALL)
    said = script(pieces=["x"], repeat=2000, itl_ms=1)
    whole = request_bytes(api.stack, api.body(STREAM, said, max_tokens=2000), {"x-request-timeout-ms": "1500"})
    files = open_files(api.stack)["gateway"]
    async with AsyncExitStack() as held:
        silent = [await held.enter_async_context(connected(api.stack)) for _ in range(30)]
        for number, connection in enumerate(silent):
            await connection.send(whole[: [10, len(whole) - 20, len(whole)][number % 3]])
        answers = await asyncio.gather(*(api.ask(WHOLE, script(pieces=["x"])) for _ in range(20)))
        assert {answer.status for answer in answers} <= {200}
        await at_rest(api.stack)
        for connection in silent[1::3]:  # in the middle of the body
            answer = await connection.read_until(b"}}")
            assert answer.startswith(b"HTTP/1.1 504 ")
            assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "timeout"
    await eventually(lambda: open_files(api.stack)["gateway"] <= files + 4, "their sockets are closed")
