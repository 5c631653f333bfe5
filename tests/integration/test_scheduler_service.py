"""The scheduler as a gRPC service: the open stream is the slot, however it ends."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import grpc
import pytest
from prometheus_client import CollectorRegistry
from redis.asyncio import Redis

from services.platform.failures import Failure, failure_of
from services.platform.fleet import FleetPublisher, WorkerRecord
from services.platform.limits import client_options
from services.platform.redis import connect
from services.platform.server import serving
from services.scheduler.app import build
from services.scheduler.settings import SchedulerSettings
from tests.eventually import eventually
from tests.fake_worker import fake_workers
from tests.redis_server import RedisServer, redis_server
from tokenpath.v1 import scheduler_pb2, scheduler_pb2_grpc, worker_pb2


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with redis_server() as running:
        yield running


@pytest.fixture
async def redis(server: RedisServer) -> AsyncIterator[Redis]:
    client = connect(server.url, timeout_s=0.5)
    await client.flushall()
    yield client
    await client.aclose()


@dataclass
class Caller:
    """One Admit call, read in the background."""

    call: grpc.aio.UnaryStreamCall[scheduler_pb2.AdmitRequest, scheduler_pb2.AdmitUpdate]
    positions: list[int] = field(default_factory=list)
    granted: scheduler_pb2.Granted | None = None
    failure: Failure | None = None
    ended: bool = False

    async def read(self) -> None:
        try:
            async for update in self.call:
                if update.HasField("granted"):
                    assert self.granted is None
                    self.granted = update.granted
                else:
                    assert self.granted is None
                    self.positions.append(update.queued.position)
        except grpc.aio.AioRpcError as error:
            self.failure = failure_of(error, "scheduler")
        except asyncio.CancelledError:
            pass
        finally:
            self.ended = True

    def leave(self) -> None:
        self.call.cancel()


@dataclass
class Scheduler:
    stub: scheduler_pb2_grpc.SchedulerAsyncStub
    registry: CollectorRegistry
    address: str
    readers: list[asyncio.Task[None]] = field(default_factory=list)

    def admit(
        self, *workers: str, priority: int = 0, slots: int = 1, timeout: float | None = 30, stub: object = None
    ) -> Caller:
        candidates = [scheduler_pb2.AdmitCandidate(decode_worker_id=name) for name in workers]
        request = scheduler_pb2.AdmitRequest(
            request_id="r", attempt=1, priority=priority, slots=slots, candidates=candidates
        )
        caller = Caller((stub or self.stub).Admit(request, timeout=timeout))  # type: ignore[attr-defined]
        self.readers.append(asyncio.create_task(caller.read()))
        return caller

    async def granted(self, *workers: str, **options: int) -> Caller:
        caller = self.admit(*workers, **options)  # type: ignore[arg-type]
        await eventually(lambda: caller.granted, "granted")
        return caller

    async def queued(self, *workers: str, **options: int) -> Caller:
        caller = self.admit(*workers, **options)  # type: ignore[arg-type]
        await eventually(lambda: caller.positions, "queued")
        return caller

    def metric(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"tokenpath_scheduler_{name}", labels) or 0.0

    async def until_idle(self) -> None:
        await eventually(
            lambda: not self.metric("slots_used") and not self.metric("queue_length"), "every slot is free again"
        )


@asynccontextmanager
async def scheduler(server: RedisServer, **changes: object) -> AsyncIterator[Scheduler]:
    defaults: dict[str, object] = {
        "state_url": server.url,
        "fleet_poll_s": 0.02,
        "position_every_s": 0.02,
        "lost_grace_s": 0.2,
        "drain_s": 0.2,
    }
    settings = SchedulerSettings(**(defaults | changes))  # type: ignore[arg-type]
    async with (
        serving("scheduler", settings, build) as runtime,
        grpc.aio.insecure_channel(runtime.address, options=client_options()) as channel,
    ):
        one = Scheduler(scheduler_pb2_grpc.SchedulerStub(channel), runtime.registry, runtime.address)
        yield one
        for reader in one.readers:
            reader.cancel()
        await asyncio.gather(*one.readers)


@asynccontextmanager
async def workers(redis: Redis, **capacities: int) -> AsyncIterator[None]:
    """Leases of decode workers without processes behind them."""
    leases = []
    for name, capacity in capacities.items():
        lease = FleetPublisher(redis, WorkerRecord(name, "g1", "decode", "127.0.0.1:1", max_num_seqs=capacity))
        await lease.start()
        leases.append(lease)
    yield
    for lease in leases:
        await lease.stop()


async def test_a_free_slot_is_granted_at_once_with_a_report(server: RedisServer, redis: Redis) -> None:
    async with workers(redis, a=1, b=1), scheduler(server) as one:
        first = await one.granted("a", "b")
        second = await one.granted("a", "b")
        assert first.positions == []
        assert first.granted is not None
        assert second.granted is not None
        assert (first.granted.candidate, second.granted.candidate) == (0, 1)
        report = second.granted.report
        assert (report.stage, report.attributes["worker"], report.attributes["position"]) == ("queue", "b", "0")
        assert one.metric("slots_used") == one.metric("slots_total") == 2


async def test_a_waiting_caller_hears_its_position_and_gets_the_slot_when_the_holder_ends(
    server: RedisServer, redis: Redis
) -> None:
    async with workers(redis, a=1), scheduler(server) as one:
        holder = await one.granted("a")
        first = await one.queued("a")
        second = await one.queued("a")
        assert (first.positions, second.positions) == ([0], [1])
        holder.leave()
        await eventually(lambda: first.granted, "the next one is granted")
        await eventually(lambda: second.positions == [1, 0], "the one behind it moved up")
        assert second.granted is None
        assert first.granted is not None
        assert first.granted.report.duration_ns > 0
        assert one.metric("wait_seconds_count") == 2


@pytest.mark.parametrize("how", ["cancel", "deadline", "disconnect"])
async def test_a_slot_is_free_again_however_its_caller_ends(server: RedisServer, redis: Redis, how: str) -> None:
    async with workers(redis, a=1), scheduler(server) as one:
        own = [*client_options(), ("grpc.use_local_subchannel_pool", 1)]  # a connection that nobody shares
        channel = grpc.aio.insecure_channel(one.address, options=own)
        held = one.admit(
            "a", timeout=0.3 if how == "deadline" else None, stub=scheduler_pb2_grpc.SchedulerStub(channel)
        )
        await eventually(lambda: held.granted, "granted")
        waiting = await one.queued("a")
        if how == "cancel":
            held.leave()
        elif how == "disconnect":
            await channel.close()
        await eventually(lambda: waiting.granted, "the slot went on")
        await channel.close()
        waiting.leave()
        await one.until_idle()


async def test_a_queued_caller_that_leaves_frees_its_place(server: RedisServer, redis: Redis) -> None:
    async with workers(redis, a=1), scheduler(server, queue_limit=1) as one:
        await one.granted("a")
        waiting = await one.queued("a")
        waiting.leave()
        await eventually(lambda: one.metric("left_total") == 1, "counted as left")
        await one.queued("a")
        assert one.metric("queue_length") == 1
        assert one.metric("rejected_total", reason="queue_full") == 0


async def test_b049_a_full_queue_is_refused_at_once_with_advice(server: RedisServer, redis: Redis) -> None:
    async with workers(redis, a=1), scheduler(server, queue_limit=2) as one:
        holder = await one.granted("a")
        await one.queued("a")
        await one.queued("a")
        refused = one.admit("a", priority=9)
        await eventually(lambda: refused.failure, "refused", limit_s=1)
        assert refused.failure is not None
        assert refused.failure.status is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert refused.failure.code == "queue_full"
        assert 100 <= refused.failure.retry_after_ms <= 30_000
        assert refused.positions == []
        assert one.metric("rejected_total", reason="queue_full") == 1
        holder.leave()
        await eventually(lambda: one.metric("queue_length") == 1, "one has moved on")
        await one.queued("a")


async def test_higher_priority_is_granted_first(server: RedisServer, redis: Redis) -> None:
    async with workers(redis, a=1), scheduler(server) as one:
        holder = await one.granted("a")
        low = await one.queued("a", priority=0)
        high = await one.queued("a", priority=5)
        await eventually(lambda: low.positions == [0, 1], "the lower one hears that it was passed")
        holder.leave()
        await eventually(lambda: high.granted, "the higher one is granted")
        assert low.granted is None


async def test_several_slots_for_several_choices_and_never_more_than_the_worker_has(
    server: RedisServer, redis: Redis
) -> None:
    async with workers(redis, a=3), scheduler(server) as one:
        huge = await one.granted("a", slots=100)
        assert one.metric("slots_used") == 3
        huge.leave()
        await one.granted("a", slots=2)
        await eventually(lambda: one.metric("slots_used") == 2, "two of three")
        await one.granted("a")
        await one.queued("a")


async def test_when_every_candidate_has_left_the_fleet_the_wait_ends_after_the_grace(
    server: RedisServer, redis: Redis
) -> None:
    async with workers(redis, stays=1), scheduler(server) as one:
        async with workers(redis, goes=1):
            await eventually(lambda: one.metric("slots_total") == 2, "both known")
            await one.granted("goes")
            waiting = await one.queued("goes")
        await eventually(lambda: waiting.failure, "told that it is in vain")
        assert waiting.failure is not None
        assert (waiting.failure.status, waiting.failure.code) == (grpc.StatusCode.UNAVAILABLE, "no_worker_available")
        unknown = one.admit("never-seen")
        await eventually(lambda: unknown.failure, "a worker that never comes")
        assert one.metric("rejected_total", reason="no_worker_available") == 2


async def test_a_worker_that_comes_within_the_grace_is_used(server: RedisServer, redis: Redis) -> None:
    async with scheduler(server, lost_grace_s=5.0) as one:
        early = await one.queued("a")
        async with workers(redis, a=1):
            await eventually(lambda: early.granted, "granted on arrival")


async def test_a_restarted_worker_has_all_its_slots_whatever_the_old_life_still_holds(
    server: RedisServer, redis: Redis
) -> None:
    record = WorkerRecord("a", "g1", "decode", "127.0.0.1:1", max_num_seqs=1)
    async with scheduler(server) as one, FleetPublisher(redis, record):
        old = await one.granted("a")
        waiting = await one.queued("a")
        async with FleetPublisher(redis, replace(record, generation="g2")):
            await eventually(lambda: waiting.granted, "granted in the new life")
            behind = await one.queued("a")
            old.leave()
            await eventually(lambda: one.metric("slots_used") == 1, "the old life's slot is gone")
            assert behind.granted is None


async def test_a_call_without_candidates_is_invalid(server: RedisServer, redis: Redis) -> None:
    async with workers(redis, a=1), scheduler(server) as one:
        for call in (one.admit(), one.admit("a", "")):
            await eventually(lambda call=call: call.failure, "refused")  # type: ignore[misc]
            assert call.failure is not None
            assert call.failure.status is grpc.StatusCode.INVALID_ARGUMENT


async def test_1000_random_joins_and_leaves_leave_no_slot_used_and_nobody_queued(
    server: RedisServer, redis: Redis
) -> None:
    dice = random.Random(3)
    async with workers(redis, a=4, b=3, c=1), scheduler(server, queue_limit=40) as one:
        await eventually(lambda: one.metric("slots_total") == 8, "the fleet is known")
        present: list[Caller] = []
        everyone: list[Caller] = []
        for _ in range(1000):
            names = dice.sample("abc", dice.randint(1, 3))
            timeout = dice.choice([0.01, 0.1, 5.0])
            caller = one.admit(*names, priority=dice.randint(0, 2), slots=dice.randint(1, 3), timeout=timeout)
            present.append(caller)
            everyone.append(caller)
            if dice.random() < 0.3:
                await asyncio.sleep(0)
            while len(present) > dice.randint(5, 60):
                present.pop(dice.randrange(len(present))).leave()
            if dice.random() < 0.4:
                await asyncio.sleep(0.003)
        for caller in present:
            caller.leave()
        await eventually(lambda: all(caller.ended for caller in everyone), "every call has ended")
        await one.until_idle()
        assert one.metric("admitted_total") > 50
        assert one.metric("left_total") > 10
        await one.granted("a", slots=4)


async def test_the_load_that_workers_report_is_shown(server: RedisServer, redis: Redis) -> None:
    async with scheduler(server) as one, fake_workers(redis, "decode-0", "prefill-0") as [decode, prefill]:
        await eventually(lambda: decode._step_queues and prefill._step_queues, "steps are followed")
        decode.step(worker_pb2.LoadState(running=3, waiting_tokens=77))
        prefill.step(worker_pb2.LoadState(waiting=2))
        await eventually(lambda: one.metric("worker_running", worker="decode-0") == 3, "running")
        assert one.metric("worker_waiting_tokens", worker="decode-0") == 77
        await eventually(lambda: one.metric("worker_waiting", worker="prefill-0") == 2, "waiting")
        await decode.leave()
        await eventually(
            lambda: one.registry.get_sample_value("tokenpath_scheduler_worker_running", {"worker": "decode-0"}) is None,
            "a worker that left is not shown",
        )
