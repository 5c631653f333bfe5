"""Wires the scheduler and starts it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from services.platform.fleet import FleetWatcher, StepFeed
from services.platform.redis import connect
from services.platform.server import Registration, Runtime, run_service
from services.scheduler.admission import Admission
from services.scheduler.metrics import SchedulerMetrics
from services.scheduler.service import SchedulerService
from services.scheduler.settings import SchedulerSettings
from tokenpath.v1.scheduler_pb2_grpc import add_SchedulerServicer_to_server


@asynccontextmanager
async def build(runtime: Runtime[SchedulerSettings]) -> AsyncIterator[Sequence[Registration]]:
    settings, registry = runtime.settings, runtime.registry
    admission = Admission(settings.queue_limit)
    metrics = SchedulerMetrics(admission, registry)
    redis = connect(settings.state_url, max_connections=2)
    fleet = FleetWatcher(redis, settings.fleet_poll_s, registry=registry)
    fleet.on_change(admission.fleet_changed)
    StepFeed(
        runtime.channels,
        runtime.tasks,
        on_load=metrics.loads.report,
        on_lost=metrics.loads.forget,
        on_gone=metrics.loads.forget,
        registry=registry,
    ).watch(fleet)
    service = SchedulerService(
        admission,
        metrics,
        runtime.telemetry,
        position_every_s=settings.position_every_s,
        lost_grace_s=settings.lost_grace_s,
    )
    try:
        async with fleet:
            yield [Registration(add_SchedulerServicer_to_server, service, "tokenpath.v1.Scheduler")]
    finally:
        await redis.aclose()


def main() -> None:
    run_service("scheduler", SchedulerSettings, build)
