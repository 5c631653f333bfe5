"""Keeps one KV event subscription to every worker of the fleet."""

from __future__ import annotations

import logging
from typing import Any

import grpc
from prometheus_client import CollectorRegistry, Counter, Gauge
from smg_grpc_proto import vllm_engine_pb2_grpc
from smg_grpc_proto.generated import common_pb2

from services.platform.channels import Channels
from services.platform.fleet import FleetWatcher, PerWorker, WorkerRecord, follow
from services.platform.tasks import TaskOwner
from services.router.kv_events import KvEventReader
from services.router.prefix_index import PrefixIndex

log = logging.getLogger(__name__)


class KvSubscriptions:
    """Feeds `index`. A worker whose stream is broken is credited with nothing until its next snapshot."""

    def __init__(self, index: PrefixIndex, channels: Channels, tasks: TaskOwner, registry: CollectorRegistry) -> None:
        self._index = index
        self._channels = channels
        self._tasks = tasks
        self._gaps = Counter(
            "tokenpath_router_kv_event_gaps_total", "Missing KV event batches noticed", ["worker"], registry=registry
        )
        self._resyncs = Counter(
            "tokenpath_router_kv_resyncs_total",
            "KV event streams that ended, so that the worker's view was dropped",
            ["worker", "reason"],
            registry=registry,
        )
        blocks = Gauge("tokenpath_router_index_blocks", "Distinct KV pages in the index", registry=registry)
        blocks.set_function(lambda: float(len(index)))
        evicted = Gauge(
            "tokenpath_router_index_evicted", "Pages that left the index because it was full", registry=registry
        )
        evicted.set_function(lambda: float(index.evicted))

    def watch(self, fleet: FleetWatcher) -> None:
        fleet.on_change(PerWorker(self._serve, self._tasks, "KV events of"))

    async def _serve(self, worker: WorkerRecord) -> None:
        stub = vllm_engine_pb2_grpc.VllmEngineStub(self._channels.get(worker.address))
        reader = KvEventReader(self._index, worker.worker_id)

        async def connect() -> grpc.aio.UnaryStreamCall[Any, common_pb2.KvEventBatch]:
            nonlocal reader
            reader = KvEventReader(self._index, worker.worker_id)
            call: grpc.aio.UnaryStreamCall[Any, common_pb2.KvEventBatch] = stub.SubscribeKvEvents(
                common_pb2.SubscribeKvEventsRequest(start_sequence_number=0)
            )
            return call

        def lost(reason: str) -> None:
            if reason == "gap":
                self._gaps.labels(worker.worker_id).inc()
            self._resyncs.labels(worker.worker_id, reason).inc()
            self._index.drop(worker.worker_id)
            log.info("KV events of %s: %s; its view is dropped", worker.worker_id, reason)

        try:
            await follow(connect, lambda batch: reader.apply(batch), lost)
        finally:
            self._index.drop(worker.worker_id)
