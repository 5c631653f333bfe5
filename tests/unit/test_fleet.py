import asyncio
import json
from collections.abc import AsyncIterator, Iterator

import pytest
from redis.asyncio import Redis

from services.platform.fleet import (
    INDEX_KEY,
    ChangeKind,
    FleetChange,
    FleetPublisher,
    FleetWatcher,
    PerWorker,
    WorkerRecord,
)
from services.platform.redis import connect
from services.platform.tasks import TaskOwner
from tests.eventually import eventually
from tests.redis_server import RedisServer, redis_server


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


def record(name: str = "decode-0", generation: str = "g1", role: str = "decode") -> WorkerRecord:
    return WorkerRecord(name, generation, role, "127.0.0.1:1", "m", "fp", 16, 100, 8, 2048)


def publisher(redis: Redis, worker: WorkerRecord) -> FleetPublisher:
    return FleetPublisher(redis, worker, ttl_s=0.5, every_s=0.05)


def test_a_record_survives_protobuf_and_json() -> None:
    worker = record()
    assert WorkerRecord.from_proto(worker.to_proto()) == worker
    assert WorkerRecord.from_json(worker.to_json()) == worker


def test_a_lease_of_a_newer_version_is_read_and_a_broken_one_is_refused() -> None:
    newer = json.dumps(json.loads(record().to_json()) | {"colour": "blue"})
    assert WorkerRecord.from_json(newer) == record()
    for broken in ("", "[]", "{}", '{"worker_id": 7}', '{"worker_id":"a","generation":"b","role":"decode"}'):
        with pytest.raises(ValueError, match="not a worker's lease"):
            WorkerRecord.from_json(broken)


async def test_a_worker_is_seen_and_leaves_at_once_when_it_stops(redis: Redis) -> None:
    seen: list[tuple[ChangeKind, str]] = []
    async with FleetWatcher(redis, 0.02, settle_s=0) as fleet:
        fleet.on_change(lambda change: seen.append((change.kind, change.worker.worker_id)))
        async with publisher(redis, record()):
            await eventually(lambda: "decode-0" in fleet.workers, "worker in the fleet")
            assert fleet.workers["decode-0"] == record()
            assert not fleet.stale
        await eventually(lambda: not fleet.workers, "worker gone", limit_s=0.4)  # sooner than its lease would end
    assert seen == [(ChangeKind.ADDED, "decode-0"), (ChangeKind.REMOVED, "decode-0")]


async def test_b051_a_killed_workers_lease_ends_by_itself(redis: Redis) -> None:
    dying = publisher(redis, record())
    async with FleetWatcher(redis, 0.02, settle_s=0) as fleet:
        await dying.start()
        await eventually(lambda: fleet.workers, "worker in the fleet")
        assert dying._tasks is not None
        await dying._tasks.close()  # what SIGKILL does: no more renewals, no farewell
        await eventually(lambda: not fleet.workers, "worker gone", limit_s=1.5)
    async with publisher(redis, record("decode-1")):  # and nothing of it is left once another one lives
        assert await redis.zrange(INDEX_KEY, 0, -1) == [b"tp:fleet:decode:decode-1"]


async def test_of_two_living_processes_with_one_name_the_newest_wins(redis: Redis) -> None:
    seen: list[tuple[ChangeKind, str]] = []
    async with FleetWatcher(redis, 0.01, settle_s=0) as fleet, publisher(redis, record(generation="old")) as old:
        fleet.on_change(lambda change: seen.append((change.kind, change.worker.generation)))
        await eventually(lambda: fleet.workers, "old life seen")
        async with publisher(redis, record(generation="new")):
            await eventually(lambda: old.superseded, "the old life noticed")
            await eventually(lambda: fleet.workers["decode-0"].generation == "new", "new life seen")
            await old.stop()
            assert b'"new"' in (await redis.get(record().lease_key) or b"")  # only its own lease is its to remove
        assert seen == [(ChangeKind.ADDED, "old"), (ChangeKind.RESTARTED, "new")]


async def test_a_superseded_process_takes_a_free_name_back(redis: Redis) -> None:
    async with publisher(redis, record(generation="old")) as old:
        async with publisher(redis, record(generation="new")):
            await eventually(lambda: old.superseded, "the old life noticed")
        await eventually(lambda: not old.superseded, "the old life has its lease back")


async def test_an_outage_of_the_store_keeps_the_last_view_and_removes_nobody() -> None:
    changes: list[FleetChange] = []
    with redis_server() as server:
        redis = connect(server.url, timeout_s=0.2)
        async with FleetWatcher(redis, 0.02, settle_s=1.0) as fleet, publisher(redis, record()) as worker:
            await eventually(lambda: fleet.workers, "worker in the fleet")
            fleet.on_change(changes.append)
            await asyncio.to_thread(server.stop, kill=True)
            await eventually(lambda: fleet.stale, "the view is marked stale")
            await eventually(lambda: worker._failures._value.get() > 3, "renewals fail and are counted")
            assert "decode-0" in fleet.workers
            await asyncio.to_thread(server.start)  # empty: every lease is lost
            await eventually(lambda: not fleet.stale, "the view is fresh again")
            await eventually(lambda: worker._claimed and not worker.superseded, "renewed")
            assert "decode-0" in fleet.workers
        await redis.aclose()
    assert [change.kind for change in changes] == [ChangeKind.ADDED]


async def test_a_worker_that_died_during_the_outage_goes_once_the_others_had_time_to_renew() -> None:
    with redis_server() as server:
        redis = connect(server.url, timeout_s=0.2)
        gone, stays = publisher(redis, record("decode-0")), publisher(redis, record("decode-1"))
        async with FleetWatcher(redis, 0.02, settle_s=0.3) as fleet, gone, stays:
            await eventually(lambda: len(fleet.workers) == 2, "both seen")
            await asyncio.to_thread(server.stop, kill=True)
            await eventually(lambda: fleet.stale, "stale")
            assert gone._tasks is not None
            await gone._tasks.close()
            await asyncio.to_thread(server.start)
            await eventually(lambda: set(fleet.workers) == {"decode-1"}, "only the living one is left")
        await redis.aclose()


async def test_a_lease_that_cannot_be_read_hides_no_other(redis: Redis) -> None:
    await redis.set("tp:fleet:decode:odd", "{", px=5000)
    await redis.zadd(INDEX_KEY, {"tp:fleet:decode:odd": 1e15})
    async with publisher(redis, record()), FleetWatcher(redis, 0.02, settle_s=0) as fleet:
        await eventually(lambda: set(fleet.workers) == {"decode-0"}, "the good one is seen")
        assert fleet._malformed._value.get() >= 1


async def test_a_new_life_is_served_only_after_the_old_ones_clean_up() -> None:
    events: list[str] = []
    cleaned = asyncio.Event()

    async def serve(worker: WorkerRecord) -> None:
        events.append(f"start {worker.generation}")
        try:
            await asyncio.Event().wait()
        finally:
            await cleaned.wait()
            events.append(f"end {worker.generation}")

    tasks = TaskOwner()
    per_worker = PerWorker(serve, tasks, "test")
    per_worker(FleetChange(ChangeKind.ADDED, record(generation="a")))
    await eventually(lambda: events == ["start a"], "first life served")
    per_worker(FleetChange(ChangeKind.REMOVED, record(generation="a")))
    per_worker(FleetChange(ChangeKind.ADDED, record(generation="b")))
    await asyncio.sleep(0)
    assert events == ["start a"]
    cleaned.set()
    await eventually(lambda: events == ["start a", "end a", "start b"], "second life served")
    await tasks.close()
    assert events[-1] == "end b"
    assert not per_worker._latest
