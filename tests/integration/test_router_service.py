"""The router as a gRPC service, with real Redis and workers that speak the real contracts."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc
import pytest
from prometheus_client import CollectorRegistry
from redis.asyncio import Redis

from services.kvcache.names import PageNamer, block_hash
from services.platform.failures import failure_of
from services.platform.limits import client_options
from services.platform.redis import connect
from services.platform.server import serving
from services.router.app import build
from services.router.settings import RouterSettings
from tests.eventually import eventually
from tests.fake_worker import BLOCK_SIZE, FakeWorker, fake_workers
from tests.redis_server import RedisServer, redis_server
from tokenpath.v1 import router_pb2, router_pb2_grpc, worker_pb2

PROMPT = list(range(160))


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with redis_server() as running:
        yield running


@pytest.fixture
async def redis(server: RedisServer) -> AsyncIterator[Redis]:
    client = connect(server.url, timeout_s=0.3)
    await client.flushall()
    yield client
    await client.aclose()


@dataclass
class Router:
    stub: router_pb2_grpc.RouterAsyncStub
    registry: CollectorRegistry

    async def route(self, number: int = 0, **fields: object) -> router_pb2.RouteResponse:
        request = {"request_id": f"req_{number}", "attempt": 1, "token_ids": PROMPT, "cache_salt": "s"} | fields
        return await self.stub.Route(router_pb2.RouteRequest(**request), timeout=5)  # type: ignore[arg-type]

    async def cached(self, worker: FakeWorker, **fields: object) -> int:
        response = await self.route(**fields)
        name = worker.record.worker_id
        return next((score.cached_tokens for score in response.scores if score.worker.worker_id == name), -1)

    def metric(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, labels) or 0.0


@asynccontextmanager
async def router(server: RedisServer, **changes: object) -> AsyncIterator[Router]:
    settings = RouterSettings(state_url=server.url, fleet_poll_s=0.02, booking_ttl_s=0.0, drain_s=1, **changes)  # type: ignore[arg-type]
    async with (
        serving("router", settings, build) as runtime,
        grpc.aio.insecure_channel(runtime.address, options=client_options()) as channel,
    ):
        yield Router(router_pb2_grpc.RouterStub(channel), runtime.registry)


async def knows(one: Router, *workers: FakeWorker) -> None:
    """The router has a connection to each worker and follows its events."""
    await eventually(lambda: all(worker.subscriptions and worker._step_queues for worker in workers), "subscribed")


def pages(tokens: list[int], salt: str = "s") -> list[int]:
    return [block_hash(name) for name in PageNamer("fp", salt, BLOCK_SIZE).names(tokens)]


async def until_cached(one: Router, worker: FakeWorker, tokens: int) -> None:
    give_up = time.monotonic() + 5
    while (held := await one.cached(worker)) != tokens:
        assert time.monotonic() < give_up, f"{worker.record.worker_id} is credited with {held}, not {tokens} tokens"


async def until_best(one: Router, worker: FakeWorker) -> None:
    give_up = time.monotonic() + 5
    while (best := (await one.route()).candidates[0].decode.worker_id) != worker.record.worker_id:
        assert time.monotonic() < give_up, f"{best} is still preferred to {worker.record.worker_id}"


async def test_the_worker_that_reported_the_pages_is_chosen_with_every_score_in_the_answer(
    server: RedisServer, redis: Redis
) -> None:
    async with fake_workers(redis, "prefill-0", "prefill-1", "decode-0") as workers, router(server) as one:
        await knows(one, *workers)
        workers[1].store(pages(PROMPT[:64]))
        await until_cached(one, workers[1], 64)
        response = await one.route()
        assert response.candidates[0].prefill.worker_id == "prefill-1"
        assert response.candidates[0].decode.worker_id == "decode-0"
        assert response.mode == router_pb2.MODE_DISAGGREGATED
        assert response.policy == "prefix_minus_load"
        assert {score.worker.worker_id for score in response.scores} == {"prefill-0", "prefill-1", "decode-0"}
        warm = next(score for score in response.scores if score.worker.worker_id == "prefill-1")
        assert {term.name: term.value for term in warm.terms}["prefix"] == pytest.approx(64 / 160)
        assert response.report.stage == "route"
        assert response.report.cached_tokens == 64
        assert response.report.duration_ns > 0
        assert response.report.attributes["prefill"] == "prefill-1"
        assert await one.cached(workers[1], cache_salt="another tenant") == 0


async def test_a_missing_event_batch_is_noticed_counted_and_healed_by_a_new_snapshot(
    server: RedisServer, redis: Redis
) -> None:
    async with fake_workers(redis, "decode-0") as [worker], router(server, mode="aggregated") as one:
        await knows(one, worker)
        worker.store(pages(PROMPT[:32]))
        await until_cached(one, worker, 32)
        worker._stored = pages(PROMPT[:48])  # what the batch that gets lost would have told
        worker.lose_a_batch()
        worker.store([])
        await until_cached(one, worker, 48)
        assert worker.subscriptions == 2
        assert one.metric("tokenpath_router_kv_event_gaps_total", worker="decode-0") == 1
        assert one.metric("tokenpath_router_kv_resyncs_total", worker="decode-0", reason="gap") == 1


async def test_b052_a_worker_restarted_in_place_loses_its_old_credit(server: RedisServer, redis: Redis) -> None:
    async with fake_workers(redis, "decode-0", "decode-1") as [a, b], router(server, mode="aggregated") as one:
        await knows(one, a, b)
        a.store(pages(PROMPT))
        await until_cached(one, a, 160)
        await a.kill()
        await a.start()
        await until_cached(one, a, 0)
        a.step(worker_pb2.LoadState(running=3))
        await until_best(one, b)  # by load alone
        assert one.metric("tokenpath_router_index_blocks") == 0


async def test_b051_a_killed_worker_gets_nothing_more_although_its_lease_lives(
    server: RedisServer, redis: Redis
) -> None:
    async with fake_workers(redis, "decode-0", "decode-1") as [a, b], router(server, mode="aggregated") as one:
        await knows(one, a, b)
        a.store(pages(PROMPT))
        await until_cached(one, a, 160)
        await a.kill()
        await eventually(
            lambda: one.metric("tokenpath_step_feed_lost_total", worker="decode-0", reason="UNAVAILABLE"), "noticed"
        )
        await eventually(lambda: not one.metric("tokenpath_router_index_blocks"), "its pages are forgotten")
        chosen = Counter([(await one.route(number)).candidates[0].decode.worker_id for number in range(20)])
        assert chosen == {"decode-1": 20}
        assert {worker.worker_id for worker in (await one.stub.Fleet(router_pb2.FleetRequest())).workers} == {
            "decode-0",
            "decode-1",
        }


async def test_a_busy_worker_is_passed_over_for_an_idle_one(server: RedisServer, redis: Redis) -> None:
    async with fake_workers(redis, "decode-0", "decode-1") as [a, b], router(server, mode="aggregated") as one:
        await knows(one, a, b)
        a.store(pages(PROMPT[:80]))
        await until_cached(one, a, 80)
        assert (await one.route()).candidates[0].decode.worker_id == "decode-0"
        a.step(worker_pb2.LoadState(running=4, kv_blocks_used=40))
        await until_best(one, b)


async def test_round_robin_is_even_over_the_wire(server: RedisServer, redis: Redis) -> None:
    async with (
        fake_workers(redis, "prefill-0", "prefill-1", "decode-0", "decode-1") as workers,
        router(server, policy="round_robin") as one,
    ):
        await knows(one, *workers)
        first = [(await one.route(number)).candidates[0] for number in range(20)]
        assert Counter(candidate.prefill.worker_id for candidate in first) == {"prefill-0": 10, "prefill-1": 10}
        assert Counter(candidate.decode.worker_id for candidate in first) == {"decode-0": 10, "decode-1": 10}


async def test_b039_workers_whose_pages_differ_are_never_offered_as_a_pair(server: RedisServer, redis: Redis) -> None:
    async with (
        fake_workers(redis, "prefill-0", "decode-0", fingerprint="old"),
        fake_workers(redis, "prefill-1", "decode-1", fingerprint="new"),
        fake_workers(redis, "prefill-2", fingerprint="odd"),
        router(server) as one,
    ):
        fleet = await one.stub.Fleet(router_pb2.FleetRequest())
        assert len(fleet.workers) == 5
        response = await one.route()
        assert {(pair.prefill.worker_id, pair.decode.worker_id) for pair in response.candidates} == {
            ("prefill-0", "decode-0"),
            ("prefill-1", "decode-1"),
        }


async def test_without_prefill_it_answers_aggregated_and_without_decode_unavailable(
    server: RedisServer, redis: Redis
) -> None:
    async with router(server) as one:
        async with fake_workers(redis, "decode-0") as [worker]:
            await knows(one, worker)
            response = await one.route(mode=router_pb2.MODE_DISAGGREGATED)
            assert response.mode == router_pb2.MODE_AGGREGATED
            assert not response.candidates[0].HasField("prefill")
            assert response.report.attributes["fallback"] == "no_prefill"
            assert one.metric("tokenpath_router_fallbacks_total", kind="no_prefill") == 1
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await one.route(exclude_workers=["decode-0"])
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        await eventually(lambda: not one.metric("tokenpath_fleet_workers", role="decode"), "the fleet is empty")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await one.route()
        failure = failure_of(refused.value, "router")
        assert (failure.status, failure.code) == (grpc.StatusCode.UNAVAILABLE, "no_worker_available")
        assert "no decode worker is alive" in failure.message
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await one.route(token_ids=[])
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_an_outage_of_the_store_is_said_and_routing_goes_on(redis: Redis) -> None:
    with redis_server() as own:
        client = connect(own.url, timeout_s=0.2)
        async with fake_workers(client, "decode-0") as [worker], router(own, mode="aggregated") as one:
            await knows(one, worker)
            own.stop(kill=True)
            await eventually(lambda: one.metric("tokenpath_fleet_stale"), "stale")
            fleet = await one.stub.Fleet(router_pb2.FleetRequest())
            assert fleet.stale
            assert [known.worker_id for known in fleet.workers] == ["decode-0"]
            assert (await one.route()).report.attributes["stale_fleet"] == "True"
            own.start()
        await client.aclose()


async def test_an_8k_token_route_is_quick_and_a_4_million_token_prompt_is_answered(
    server: RedisServer, redis: Redis
) -> None:
    async with fake_workers(redis, "prefill-0", "decode-0") as workers, router(server) as one:
        await knows(one, *workers)
        long = list(range(8192))
        workers[0].store(pages(long))
        await until_cached(one, workers[0], 160)
        durations = [(await one.route(token_ids=long)).report.duration_ns / 1e6 for _ in range(20)]
        assert min(durations) < 3, f"{min(durations):.2f} ms"
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await one.route(token_ids=[7] * 4_000_000)
        assert failure_of(refused.value, "router").code == "context_length_exceeded"
