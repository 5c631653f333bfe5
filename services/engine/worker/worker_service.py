"""`tokenpath.v1.Worker`: what the engine contract lacks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc

from services.engine.worker import mapping
from services.engine.worker.parts import WorkerParts
from tokenpath.v1 import worker_pb2, worker_pb2_grpc

SERVICE = "tokenpath.v1.Worker"

Context = grpc.aio.ServicerContext[Any, Any]


class WorkerService(worker_pb2_grpc.WorkerServicer):
    """Describes the worker and tells of its steps."""

    def __init__(self, parts: WorkerParts) -> None:
        self._parts = parts

    async def Describe(self, request: worker_pb2.DescribeRequest, context: Context) -> worker_pb2.DescribeResponse:
        return worker_pb2.DescribeResponse(
            worker=self._parts.record.to_proto(), load=mapping.load_state(self._parts.engine.load)
        )

    async def WatchSteps(
        self, request: worker_pb2.WatchStepsRequest, context: Context
    ) -> AsyncIterator[worker_pb2.StepReports]:
        """The load now, then steps; a watcher that is too slow loses the oldest and sees that by their numbers."""
        engine, generation = self._parts.engine, self._parts.record.generation
        with engine.steps.watch() as watcher:
            yield mapping.step_reports(generation, (), engine.load)
            while records := await watcher.next():
                yield mapping.step_reports(generation, records, records[-1].load)
