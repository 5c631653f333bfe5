"""Answers `tokenpath.v1.Scheduler`: the open stream is the slot."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import NoReturn

import grpc
from opentelemetry.trace import SpanKind

from services.platform.context import RequestContext
from services.platform.failures import Failure, abort_with
from services.platform.stage import Stage
from services.platform.telemetry import Telemetry
from services.scheduler.admission import Admission, Rejected, Ticket
from services.scheduler.metrics import SchedulerMetrics
from tokenpath.v1 import scheduler_pb2, scheduler_pb2_grpc

_RPC = "tokenpath.v1.Scheduler/Admit"

Context = grpc.aio.ServicerContext[scheduler_pb2.AdmitRequest, scheduler_pb2.AdmitUpdate]


class SchedulerService(scheduler_pb2_grpc.SchedulerServicer):
    def __init__(
        self,
        admission: Admission,
        metrics: SchedulerMetrics,
        telemetry: Telemetry,
        *,
        position_every_s: float,
        lost_grace_s: float,
    ) -> None:
        """position_every_s: a waiting caller hears of its position at most so often; lost_grace_s: how long all its
        candidates may be missing from the fleet before it is sent away."""
        self._admission = admission
        self._metrics = metrics
        self._telemetry = telemetry
        self._position_every_s = position_every_s
        self._lost_grace_s = lost_grace_s

    async def Admit(self, request: scheduler_pb2.AdmitRequest, context: Context) -> None:  # type: ignore[override]
        # Not an async generator: a cancelled call would leave a suspended generator, and with it the slot, to
        # the garbage collector.
        parent = RequestContext.from_grpc(context).trace
        granted = asyncio.Event()
        ticket = Ticket(
            workers=tuple(candidate.decode_worker_id for candidate in request.candidates),
            count=request.slots,
            priority=request.priority,
            on_granted=granted.set,
        )
        try:
            # The stage is the wait; the slot may be held for minutes after it.
            with self._telemetry.stage("queue", parent=parent, kind=SpanKind.SERVER, rpc=_RPC) as stage:
                self._join(ticket)
                stage.note("position", self._admission.queue.position(ticket) or 0)
                stage.note("queue_length", len(self._admission.queue))
                await self._wait(ticket, granted, context)
                update = self._granted(ticket, stage)
            await context.write(update)
            await _until_cancelled()
        except Failure as failure:
            self._metrics.rejected.labels(failure.code).inc()
            await abort_with(context, failure)
        finally:
            self._admission.leave(ticket)

    def _join(self, ticket: Ticket) -> None:
        if not all(ticket.workers) or not ticket.workers:
            raise Failure(
                grpc.StatusCode.INVALID_ARGUMENT,
                "at least one candidate is needed, each with its decode_worker_id",
                code="no_candidates",
            )
        try:
            self._admission.join(ticket)
        except Rejected as rejected:
            raise Failure(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"the service is at capacity: {rejected.waiting} requests are waiting already; try again later",
                code="queue_full",
                retry_after_ms=rejected.retry_after_ms,
            ) from None

    async def _wait(self, ticket: Ticket, granted: asyncio.Event, context: Context) -> None:
        queue = self._admission.queue
        told: int | None = None
        last_seen = time.monotonic()
        try:
            while ticket.slot is None:
                position = queue.position(ticket)
                if position is not None and position != told:
                    queued = scheduler_pb2.Queued(position=position, queue_length=len(queue))
                    await context.write(scheduler_pb2.AdmitUpdate(queued=queued))
                    told = position
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._position_every_s):
                        await granted.wait()
                if self._admission.slots.known(ticket.workers):
                    last_seen = time.monotonic()
                elif ticket.slot is None and time.monotonic() - last_seen >= self._lost_grace_s:
                    raise Failure(
                        grpc.StatusCode.UNAVAILABLE,
                        "every worker chosen for this request has left the fleet; it can be routed anew",
                        code="no_worker_available",
                        retry_after_ms=1000,
                    )
        except asyncio.CancelledError:
            self._metrics.left.inc()
            raise

    def _granted(self, ticket: Ticket, stage: Stage) -> scheduler_pb2.AdmitUpdate:
        worker_id = ticket.workers[ticket.candidate]
        stage.note("worker", worker_id)
        if ticket.slot is not None:
            stage.note("slots", ticket.slot.count)
        self._metrics.admitted.inc()
        self._metrics.wait_seconds.observe(stage.stop() / 1e9)
        return scheduler_pb2.AdmitUpdate(
            granted=scheduler_pb2.Granted(candidate=ticket.candidate, report=stage.report())
        )


async def _until_cancelled() -> NoReturn:
    """Grpc cancels the handler when the caller ends the call, its deadline passes or its connection breaks."""
    await asyncio.get_running_loop().create_future()
    raise AssertionError("nothing completes this future")
