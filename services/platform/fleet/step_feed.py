"""Every worker's load, as it reports it after each change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
from prometheus_client import CollectorRegistry, Counter

from services.platform.channels import Channels
from services.platform.fleet.per_worker import PerWorker, follow
from services.platform.fleet.record import WorkerRecord
from services.platform.fleet.watcher import FleetWatcher
from services.platform.tasks import TaskOwner
from tokenpath.v1 import worker_pb2, worker_pb2_grpc


class StepFeed:
    """Follows `Worker/WatchSteps` of every worker of a fleet.

    `on_load(worker, load)` with the present load, at once on connecting and after each change; `on_lost(worker)` when
    the stream broke: the load is unknown until the next `on_load`; `on_gone(worker)` when this life has left the fleet.
    """

    def __init__(
        self,
        channels: Channels,
        tasks: TaskOwner,
        *,
        on_load: Callable[[WorkerRecord, worker_pb2.LoadState], None],
        on_lost: Callable[[WorkerRecord], None],
        on_gone: Callable[[WorkerRecord], None],
        registry: CollectorRegistry,
    ) -> None:
        self._channels = channels
        self._tasks = tasks
        self._on_load = on_load
        self._on_lost = on_lost
        self._on_gone = on_gone
        self._lost = Counter(
            "tokenpath_step_feed_lost_total",
            "Step streams of workers that broke",
            ["worker", "reason"],
            registry=registry,
        )

    def watch(self, fleet: FleetWatcher) -> None:
        fleet.on_change(PerWorker(self._serve, self._tasks, "steps of"))

    async def _serve(self, worker: WorkerRecord) -> None:
        stub = worker_pb2_grpc.WorkerStub(self._channels.get(worker.address))

        async def connect() -> grpc.aio.UnaryStreamCall[Any, worker_pb2.StepReports]:
            return stub.WatchSteps(worker_pb2.WatchStepsRequest())

        def stepped(reports: worker_pb2.StepReports) -> None:
            self._on_load(worker, reports.load)

        def lost(reason: str) -> None:
            self._lost.labels(worker.worker_id, reason).inc()
            self._on_lost(worker)

        try:
            await follow(connect, stepped, lost)
        finally:
            self._on_gone(worker)
