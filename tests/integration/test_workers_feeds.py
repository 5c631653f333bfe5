"""What workers tell routers and schedulers: KV events, steps, leases, metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from smg_grpc_proto.generated import common_pb2

from services.kvcache.names import PageNamer, block_hash
from services.platform.fleet import WorkerRecord
from services.platform.redis import connect
from tests.integration.worker_harness import TOKENIZER, WorkerClient, decode_worker, request, script
from tests.redis_server import redis_server
from tokenpath.v1 import worker_pb2

PROMPT = list(range(100, 164))


@pytest.fixture
async def worker() -> AsyncIterator[WorkerClient]:
    async with decode_worker(kv_blocks=6, max_num_seqs=4) as running:
        yield running


class Mirror:
    """A router's view of one worker, made from its events alone."""

    def __init__(self, call: Any) -> None:
        self.call = call
        self.hashes: set[int] = set()
        self.sequence: int | None = None
        self.last: common_pb2.KvEventBatch | None = None

    async def read_until(self, sequence: int) -> None:
        """Apply events up to a number. Fails on a gap, an unknown parent or an unknown removal."""
        while (self.sequence or 0) < sequence:
            batch = await asyncio.wait_for(self.call.read(), 5)
            assert batch.HasField("load")
            if batch.load.load_only:
                assert batch.sequence_number == self.sequence
                continue
            assert batch.HasField("snapshot") == (self.sequence is None)
            assert self.sequence in (None, batch.sequence_number - 1)
            self.sequence, self.last = batch.sequence_number, batch
            for event in batch.events:
                self.apply(event)

    def apply(self, event: common_pb2.KvCacheEvent) -> None:
        kind = event.WhichOneof("data")
        if kind == "stored":
            stored = event.stored
            assert not stored.HasField("parent_block_hash") or stored.parent_block_hash in self.hashes
            self.hashes |= {block.block_hash for block in stored.blocks}
        elif kind == "removed":
            self.hashes -= set(event.removed.block_hashes)
        else:
            self.hashes.clear()


async def test_kv_events_mirror_the_cache_through_eviction_and_flush(worker: WorkerClient) -> None:
    mirror = Mirror(worker.engine.SubscribeKvEvents(common_pb2.SubscribeKvEventsRequest()))
    await mirror.read_until(1)
    assert mirror.sequence == 1  # a new life is known by it

    await worker.generate(request("R", PROMPT, max_tokens=1), salt="tenant")
    await mirror.read_until(2)
    info = await worker.worker.Describe(worker_pb2.DescribeRequest())
    names = PageNamer(info.worker.fingerprint, "tenant", 16).names(PROMPT)
    assert mirror.hashes == {block_hash(name) for name in names}
    assert mirror.last is not None
    assert {event.stored.cache_salt for event in mirror.last.events} == {"tenant"}
    assert [list(event.stored.blocks[0].token_ids) for event in mirror.last.events] == [
        PROMPT[start : start + 16] for start in range(0, 64, 16)
    ]

    await worker.generate(request("S", [7] * 64, max_tokens=1))  # the pool has 6 blocks: this evicts
    await mirror.read_until(3)
    late = Mirror(worker.engine.SubscribeKvEvents(common_pb2.SubscribeKvEventsRequest()))
    await late.read_until(3)
    assert late.hashes == mirror.hashes
    assert len(mirror.hashes) == (await worker.load()).kv_blocks_cached

    resumed = worker.engine.SubscribeKvEvents(common_pb2.SubscribeKvEventsRequest(start_sequence_number=3))
    assert not (first := await resumed.read()).HasField("snapshot")
    assert first.sequence_number == 3

    await worker.engine.FlushCache(common_pb2.FlushCacheRequest())
    await mirror.read_until(4)
    await late.read_until(4)
    assert mirror.hashes == late.hashes == set()
    for call in (mirror.call, late.call, resumed):
        call.cancel()


async def test_load_is_told_with_the_events(worker: WorkerClient) -> None:
    call = worker.engine.SubscribeKvEvents(common_pb2.SubscribeKvEventsRequest())
    busy = worker.engine.Generate(request("R", script("x", hang_after=0)))
    loads: list[common_pb2.EngineLoad] = []
    while not (loads and loads[-1].running_requests == 1):
        loads.append((await asyncio.wait_for(call.read(), 5)).load)
    busy.cancel()
    while loads[-1].running_requests:
        loads.append((await asyncio.wait_for(call.read(), 5)).load)
    assert loads[-1].load_only
    assert (loads[-1].max_running_requests, loads[-1].max_total_num_tokens) == (4, 96)
    assert [load.sample for load in loads] == sorted(load.sample for load in loads)
    call.cancel()


async def test_every_step_is_told(worker: WorkerClient) -> None:
    call = worker.worker.WatchSteps(worker_pb2.WatchStepsRequest())
    ready = asyncio.create_task(call.read())
    await call.wait_for_connection()
    answer = await worker.generate(request("R", script("one two three four", itl_ms=5)))
    steps: list[worker_pb2.StepReport] = []
    while sum(step.decode_tokens for step in steps) < len(answer.tokens[0]):
        message = await asyncio.wait_for(ready, 5)
        steps += message.steps
        ready = asyncio.create_task(call.read())
    ready.cancel()
    call.cancel()
    described = await worker.worker.Describe(worker_pb2.DescribeRequest())
    assert message.generation == described.worker.generation
    assert [step.step for step in steps] == list(range(1, len(steps) + 1))
    assert sum(step.prefill_tokens for step in steps) == answer.completes[0].prompt_tokens
    assert steps[-1].load.running == 0
    assert steps[-1].load.kv_blocks_total == 6


async def test_a_load_that_falls_without_a_step_is_told(worker: WorkerClient) -> None:
    """An aborted sequence makes no step; who watches must not take its worker for busy until the next one."""
    call = worker.worker.WatchSteps(worker_pb2.WatchStepsRequest())
    loads = [(await asyncio.wait_for(call.read(), 5)).load]
    assert loads[0].kv_blocks_total == 6
    busy = worker.engine.Generate(request("R", script("x", hang_after=0)))
    while loads[-1].running == 0:
        loads.append((await asyncio.wait_for(call.read(), 5)).load)
    busy.cancel()
    while loads[-1].running or loads[-1].kv_blocks_used:
        loads.append((await asyncio.wait_for(call.read(), 5)).load)
    call.cancel()


async def test_open_feeds_do_not_hold_up_a_shutdown() -> None:
    async with decode_worker(drain_s=30) as worker:
        streams = [
            worker.worker.WatchSteps(worker_pb2.WatchStepsRequest()),
            worker.engine.SubscribeKvEvents(common_pb2.SubscribeKvEventsRequest()),
        ]
        for stream in streams:
            await stream.wait_for_connection()
        began = time.monotonic()
    assert time.monotonic() - began < 5


async def test_the_lease_comes_with_readiness_and_goes_with_the_worker() -> None:
    with redis_server() as server:
        redis = connect(server.url)
        async with decode_worker(state_url=server.url, worker_id="decode-7") as worker:
            lease = WorkerRecord.from_json(await redis.get("tp:fleet:decode:decode-7"))
            described = await worker.worker.Describe(worker_pb2.DescribeRequest())
            assert lease == WorkerRecord.from_proto(described.worker)
            assert lease.address == worker.runtime.address
            assert (lease.block_size, lease.kv_blocks, lease.max_num_seqs) == (16, 1024, 32)
        assert await redis.get("tp:fleet:decode:decode-7") is None
        await redis.aclose()


async def test_metrics_have_the_names_that_dashboards_know(worker: WorkerClient) -> None:
    answer = await worker.generate(request("R", script("one two three")))
    model = {"model_name": TOKENIZER.name}
    tokens = len(answer.tokens[0])
    expected = {
        "vllm:prompt_tokens_total": answer.completes[0].prompt_tokens,
        "vllm:generation_tokens_total": tokens,
        "vllm:prefix_cache_queries_total": answer.completes[0].prompt_tokens,
        "vllm:time_to_first_token_seconds_count": 1,
        "vllm:inter_token_latency_seconds_count": tokens - 1,
        "vllm:e2e_request_latency_seconds_count": 1,
        "vllm:request_queue_time_seconds_count": 1,
        "vllm:request_prefill_time_seconds_count": 1,
        "vllm:request_decode_time_seconds_count": 1,
    }
    assert {name: worker.metric(name, **model) for name in expected} == expected
    assert worker.metric("vllm:request_success_total", finished_reason="stop", **model) == 1
    assert worker.metric("vllm:cache_config_info", block_size="16", num_gpu_blocks="6", **model) == 1
