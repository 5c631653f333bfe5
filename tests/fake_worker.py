"""A worker without an engine: it serves the event streams that routers and schedulers follow, as a test tells it."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import grpc
from redis.asyncio import Redis
from smg_grpc_proto import vllm_engine_pb2_grpc
from smg_grpc_proto.generated import common_pb2

from services.platform.fleet import FleetPublisher, WorkerRecord
from services.platform.ids import new_generation
from services.platform.limits import server_options
from tokenpath.v1 import worker_pb2, worker_pb2_grpc

BLOCK_SIZE = 16


class FakeWorker(vllm_engine_pb2_grpc.VllmEngineServicer, worker_pb2_grpc.WorkerServicer):
    """One worker that can live several lives at one address. Stopped by `kill` (its lease stays) or `leave`."""

    def __init__(self, redis: Redis, worker_id: str, *, fingerprint: str = "fp", max_num_seqs: int = 4) -> None:
        role = worker_id.split("-")[0]
        self.record = WorkerRecord(
            worker_id, "", role, "127.0.0.1:0", "m", fingerprint, BLOCK_SIZE, 1024, max_num_seqs, 1_000_000
        )
        self.load = worker_pb2.LoadState()
        self.subscriptions = 0
        self._redis = redis
        self._stored: list[int] = []
        self._number = 0
        self._kv_queues: list[asyncio.Queue[common_pb2.KvEventBatch]] = []
        self._step_queues: list[asyncio.Queue[worker_pb2.StepReports]] = []
        self._publisher: FleetPublisher | None = None
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        """A new life: another generation, an empty cache, no load, the same address as before."""
        self._stored, self._number, self.load = [], 0, worker_pb2.LoadState()
        self._server = grpc.aio.server(options=server_options())
        vllm_engine_pb2_grpc.add_VllmEngineServicer_to_server(self, self._server)
        worker_pb2_grpc.add_WorkerServicer_to_server(self, self._server)
        port = self._server.add_insecure_port(self.record.address)
        self.record = replace(self.record, generation=new_generation(), address=f"127.0.0.1:{port}")
        await self._server.start()
        self._publisher = FleetPublisher(self._redis, self.record, ttl_s=6.0, every_s=0.5)
        await self._publisher.start()

    async def kill(self) -> None:
        """As SIGKILL does: connections break and the lease is left to end by itself."""
        if self._publisher is not None and self._publisher._tasks is not None:
            await self._publisher._tasks.close()
        if self._server is not None:
            await self._server.stop(0)

    async def leave(self) -> None:
        if self._publisher is not None:
            await self._publisher.stop()
        await self.kill()

    def store(self, hashes: Iterable[int]) -> None:
        """Pages came into the cache."""
        hashes = list(hashes)
        self._stored += hashes
        self._send([_stored(hashes)])

    def lose_a_batch(self) -> None:
        """A batch of events that no subscriber gets."""
        self._number += 1

    def step(self, load: worker_pb2.LoadState) -> None:
        """An engine step that ended with this load."""
        self.load = load
        report = worker_pb2.StepReports(
            generation=self.record.generation, steps=[worker_pb2.StepReport(step=1, load=load)], load=load
        )
        for queue in self._step_queues:
            queue.put_nowait(report)

    def _send(self, events: list[common_pb2.KvCacheEvent]) -> None:
        self._number += 1
        for queue in self._kv_queues:
            queue.put_nowait(common_pb2.KvEventBatch(sequence_number=self._number, events=events))

    async def SubscribeKvEvents(
        self, request: common_pb2.SubscribeKvEventsRequest, context: object
    ) -> AsyncIterator[common_pb2.KvEventBatch]:
        queue: asyncio.Queue[common_pb2.KvEventBatch] = asyncio.Queue()
        snapshot = common_pb2.KvEventBatch(
            sequence_number=self._number,
            events=[common_pb2.KvCacheEvent(cleared=common_pb2.KvCacheCleared()), _stored(self._stored)],
            snapshot=common_pb2.KvSnapshotChunk(index=0, count=1, blocks=len(self._stored)),
        )
        self._kv_queues.append(queue)
        self.subscriptions += 1
        try:
            yield snapshot
            while True:
                yield await queue.get()
        finally:
            self._kv_queues.remove(queue)

    async def Describe(self, request: worker_pb2.DescribeRequest, context: object) -> worker_pb2.DescribeResponse:
        return worker_pb2.DescribeResponse(worker=self.record.to_proto(), load=self.load)

    async def WatchSteps(
        self, request: worker_pb2.WatchStepsRequest, context: object
    ) -> AsyncIterator[worker_pb2.StepReports]:
        queue: asyncio.Queue[worker_pb2.StepReports] = asyncio.Queue()
        self._step_queues.append(queue)
        try:
            yield worker_pb2.StepReports(generation=self.record.generation, load=self.load)
            while True:
                yield await queue.get()
        finally:
            self._step_queues.remove(queue)


@asynccontextmanager
async def fake_workers(
    redis: Redis, *worker_ids: str, fingerprint: str = "fp", max_num_seqs: int = 4
) -> AsyncIterator[list[FakeWorker]]:
    """Workers that run, ended on exit."""
    async with AsyncExitStack() as stack:
        workers = []
        for worker_id in worker_ids:
            worker = FakeWorker(redis, worker_id, fingerprint=fingerprint, max_num_seqs=max_num_seqs)
            await worker.start()
            stack.push_async_callback(worker.leave)
            workers.append(worker)
        yield workers


def _stored(hashes: Iterable[int]) -> common_pb2.KvCacheEvent:
    blocks = [common_pb2.KvBlock(block_hash=block, block_size=BLOCK_SIZE) for block in hashes]
    return common_pb2.KvCacheEvent(stored=common_pb2.KvBlocksStored(blocks=blocks))
