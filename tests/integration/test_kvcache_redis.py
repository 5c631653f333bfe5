"""The page store on a real Redis: what comes back is right or is named as a fault; nothing else happens."""

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import cast

import pytest
import redis.asyncio
from prometheus_client import CollectorRegistry

from services.kvcache.envelope import HEADER_BYTES, FaultReason, PageFault
from services.kvcache.names import PageName, PageNamer
from services.kvcache.page import Page
from services.kvcache.redis_store import KEY_PREFIX, RedisPageStore
from services.kvcache.store import StoreUnavailable
from tests.latency_proxy import latency_proxy
from tests.redis_server import RedisServer, redis_server

NAMER = PageNamer("fp", "salt", 16)


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with redis_server() as running:
        yield running


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
async def store(
    server: RedisServer, registry: CollectorRegistry, raw: redis.asyncio.Redis
) -> AsyncIterator[RedisPageStore]:
    async with opened(server.url, registry=registry) as one:
        yield one


@pytest.fixture
async def raw(server: RedisServer) -> AsyncIterator[redis.asyncio.Redis]:
    client = redis.asyncio.Redis.from_url(server.url)
    await client.flushall()
    yield client
    await client.aclose()


@asynccontextmanager
async def opened(
    url: str,
    *,
    registry: CollectorRegistry,
    max_connections: int = 8,
    timeout_s: float = 1.0,
    batch_bytes: int = 1 << 22,
) -> AsyncIterator[RedisPageStore]:
    one = RedisPageStore(
        url,
        "fp",
        registry=registry,
        max_connections=max_connections,
        timeout_s=timeout_s,
        batch_bytes=batch_bytes,
    )
    try:
        yield one
    finally:
        await one.close()


def made_pages(count: int, size: int = 1000, first_token: int = 0) -> list[Page]:
    names = NAMER.names([first_token, *range(16 * count - 1)])
    return [Page(name, 16, os.urandom(size)) for name in names]


def wanted(pages: Sequence[Page]) -> list[tuple[PageName, int]]:
    return [(page.name, page.tokens) for page in pages]


def key(page: Page) -> bytes:
    return KEY_PREFIX + page.name.hex().encode()


def reasons(results: Sequence[Page | PageFault]) -> list[str]:
    return [result.reason.value if isinstance(result, PageFault) else "page" for result in results]


async def test_pages_come_back_in_order_over_many_batches(server: RedisServer, registry: CollectorRegistry) -> None:
    pages = [*made_pages(40, size=50_000), Page(NAMER.next(None, [1, 2, 3]), 3, os.urandom(50_000))]
    async with opened(server.url, registry=registry, batch_bytes=200_000) as store:
        result = await store.put(pages, ttl_s=60)
        got = await store.get(wanted(pages)[::-1])
    assert (result.pages, result.written) == (41, 41)
    assert result.bytes >= 41 * 50_000
    assert [bytes(page.payload) for page in got if isinstance(page, Page)] == [p.payload for p in pages][::-1]


async def test_nothing_to_do_is_fine(store: RedisPageStore) -> None:
    assert (await store.put([], ttl_s=60)).pages == 0
    assert await store.get([]) == []


async def test_b040_every_key_has_a_time_to_live(store: RedisPageStore, raw: redis.asyncio.Redis) -> None:
    await store.put(made_pages(20), ttl_s=60)
    keys = await raw.keys()
    assert len(keys) == 20
    assert all([0 < await raw.pttl(name) <= 60_000 for name in keys])


async def test_b033_an_expired_page_is_missing(store: RedisPageStore, raw: redis.asyncio.Redis) -> None:
    pages = made_pages(2)
    await store.put(pages, ttl_s=0.05)
    async with asyncio.timeout(5):
        while await raw.exists(*map(key, pages)):  # noqa: ASYNC110 - expiry sends no event
            await asyncio.sleep(0.01)
    assert reasons(await store.get(wanted(pages))) == ["missing", "missing"]


async def test_a_second_put_sends_no_payload_and_never_shortens_a_life(
    store: RedisPageStore, raw: redis.asyncio.Redis
) -> None:
    pages = made_pages(4)
    await store.put(pages[:3], ttl_s=60)
    longer = await store.put(pages, ttl_s=600)
    assert (longer.pages, longer.written) == (4, 1)
    assert longer.bytes < 2 * 1000
    shorter = await store.put(pages, ttl_s=1)
    assert shorter.written == 0
    assert all([await raw.pttl(key(page)) > 500_000 for page in pages])


async def test_damaged_pages_are_named_counted_and_deleted(
    store: RedisPageStore, raw: redis.asyncio.Redis, registry: CollectorRegistry
) -> None:
    pages = made_pages(6)
    await store.put(pages, ttl_s=60)
    values = [bytearray(cast(bytes, await raw.get(key(page)))) for page in pages]
    values[1][HEADER_BYTES + 500] ^= 1
    await raw.set(key(pages[1]), bytes(values[1]), px=60_000)
    await raw.set(key(pages[2]), bytes(values[2][:-1]), px=60_000)
    await raw.set(key(pages[3]), bytes(values[4]), px=60_000)
    await raw.delete(key(pages[5]))
    asked = wanted(pages)
    asked[4] = (asked[4][0], 7)
    got = await store.get(asked)
    assert reasons(got) == ["page", "corrupt", "short", "mismatch", "wrong_tokens", "missing"]
    for outcome in ("read", "corrupt", "short", "mismatch", "wrong_tokens", "missing"):
        assert registry.get_sample_value("tokenpath_kv_store_pages_total", {"outcome": outcome}) == 1
    # A bad page that stayed would have its life renewed by every writer that finds it there.
    assert await raw.keys() == [key(pages[0])]
    assert (await store.put(pages, ttl_s=60)).written == 5
    assert reasons(await store.get(wanted(pages))) == ["page"] * 6


async def test_b073_a_page_of_many_megabytes(store: RedisPageStore) -> None:
    pages = made_pages(2, size=9_000_000)
    await store.put(pages, ttl_s=60)
    assert [bytes(page.payload) for page in await store.get(wanted(pages)) if isinstance(page, Page)] == [
        page.payload for page in pages
    ]


async def test_b087_cancelled_calls_never_leave_their_reply_to_another(server: RedisServer) -> None:
    """500 reads and writes with 100 ms to Redis, a third cancelled at random moments."""
    registry = CollectorRegistry()
    rng = random.Random(87)
    sets = [made_pages(3, size=300, first_token=n + 1) for n in range(500)]
    async with (
        opened(server.url, registry=CollectorRegistry()) as direct,
        latency_proxy(server.port, 0.1) as proxy,
        opened(proxy.redis_url, registry=registry, max_connections=100, timeout_s=10) as slow,
    ):
        for pages in sets:
            await direct.put(pages, ttl_s=60)

        async def one(pages: list[Page]) -> None:
            if rng.random() < 0.2:
                assert (await slow.put(pages, ttl_s=60)).written == 0
            got = await slow.get(wanted(pages))
            assert [bytes(page.payload) for page in got if isinstance(page, Page)] == [p.payload for p in pages]

        tasks = [asyncio.create_task(one(pages)) for pages in sets]
        loop = asyncio.get_running_loop()
        doomed = rng.sample(tasks, 167)
        for task in doomed:
            loop.call_later(rng.uniform(0, 1.0), task.cancel)
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert [o for o in outcomes if o is not None and not isinstance(o, asyncio.CancelledError)] == []
        assert sum(isinstance(o, asyncio.CancelledError) for o in outcomes) > 100
        assert registry.get_sample_value("tokenpath_kv_store_pages_total", {"outcome": "mismatch"}) is None
        # No connection was lost on the way: as many calls as the pool is large run at the same time.
        await asyncio.wait_for(asyncio.gather(*(one(pages) for pages in sets[:100])), 5)


async def test_b088_a_full_pool_waits_a_bounded_time(server: RedisServer, registry: CollectorRegistry) -> None:
    pages = made_pages(1)
    async with (
        opened(server.url, registry=CollectorRegistry()) as direct,
        latency_proxy(server.port, 0.3) as proxy,
        opened(proxy.redis_url, registry=registry, max_connections=2, timeout_s=1.0) as slow,
    ):
        await direct.put(pages, ttl_s=60)
        started = time.monotonic()
        results = await asyncio.gather(*(slow.get(wanted(pages)) for _ in range(30)))
        assert time.monotonic() - started < 3
        outcomes = {result[0].reason if isinstance(result[0], PageFault) else None for result in results}
        assert outcomes == {None, FaultReason.UNAVAILABLE}
        assert registry.get_sample_value(
            "tokenpath_kv_store_failures_total", {"operation": "get", "reason": "busy"}
        ) == sum(isinstance(result[0], PageFault) for result in results)
        assert reasons(await slow.get(wanted(pages))) == ["page"]


async def test_b089_a_refused_write_is_a_counted_failure_and_the_store_goes_on(registry: CollectorRegistry) -> None:
    with redis_server("--maxmemory", "8mb", "--maxmemory-policy", "noeviction") as small:
        async with opened(small.url, registry=registry) as store:
            first = made_pages(2, size=100_000)
            await store.put(first, ttl_s=60)
            with pytest.raises(StoreUnavailable) as refused:
                await store.put(made_pages(100, size=100_000, first_token=5), ttl_s=60)
            assert refused.value.reason == "refused"
            assert registry.get_sample_value(
                "tokenpath_kv_store_failures_total", {"operation": "put", "reason": "refused"}
            )
            assert reasons(await store.get(wanted(first))) == ["page", "page"]


async def test_b089_evicted_pages_are_misses(registry: CollectorRegistry) -> None:
    with redis_server("--maxmemory", "8mb", "--maxmemory-policy", "allkeys-lru") as small:
        async with opened(small.url, registry=registry, batch_bytes=1 << 20) as store:
            pages = made_pages(150, size=100_000)
            await store.put(pages, ttl_s=60)
            got = await store.get(wanted(pages))
            assert set(reasons(got)) == {"page", "missing"}


async def test_b091_a_restarted_redis_is_used_again_at_once(registry: CollectorRegistry) -> None:
    pages = made_pages(3)
    with redis_server() as server:
        async with opened(server.url, registry=registry) as store:
            await store.put(pages, ttl_s=60)
            await asyncio.to_thread(server.stop, kill=True)
            assert reasons(await store.get(wanted(pages))) == ["unavailable"] * 3
            with pytest.raises(StoreUnavailable, match="connection"):
                await store.put(pages, ttl_s=60)
            await asyncio.to_thread(server.start)
            assert reasons(await store.get(wanted(pages))) == ["missing"] * 3
            assert (await store.put(pages, ttl_s=60)).written == 3


async def test_b093_a_frozen_redis_costs_one_timeout(registry: CollectorRegistry) -> None:
    pages = made_pages(3)
    with redis_server() as server:
        async with opened(server.url, registry=registry, timeout_s=0.3) as store:
            await store.put(pages, ttl_s=60)
            assert server.process is not None
            server.process.send_signal(signal.SIGSTOP)
            try:
                started = time.monotonic()
                assert reasons(await store.get(wanted(pages))) == ["unavailable"] * 3
                assert time.monotonic() - started < 1
            finally:
                server.process.send_signal(signal.SIGCONT)
            assert reasons(await store.get(wanted(pages))) == ["page"] * 3
