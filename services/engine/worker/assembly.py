"""Puts a worker together: model, engine, servicers, lease. What both roles' `app.py` share."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TypeVar

from smg_grpc_proto.generated import vllm_engine_pb2_grpc

from services.engine.async_engine import AsyncEngine
from services.engine.batching import BatchLimits
from services.engine.core import CoreSettings
from services.engine.fingerprint import kv_fingerprint
from services.engine.kv_events import KvEventLog
from services.engine.stats import EngineStats
from services.engine.worker import engine_service, worker_service
from services.engine.worker.calls import Role
from services.engine.worker.engine_service import EngineService
from services.engine.worker.models import LoadedModel, load_model
from services.engine.worker.parts import WorkerParts
from services.engine.worker.settings import WorkerSettings
from services.engine.worker.worker_service import WorkerService
from services.platform.fleet import FleetPublisher, WorkerRecord
from services.platform.ids import new_generation
from services.platform.redis import connect
from services.platform.server import Registration, Runtime
from tokenpath.v1 import worker_pb2_grpc

W = TypeVar("W", bound=WorkerSettings)
SWITCH_S = 0.0005
MakeRole = Callable[[WorkerParts], Role]


@asynccontextmanager
async def open_worker(
    runtime: Runtime[W], role_name: str, make_role: MakeRole
) -> AsyncIterator[Sequence[Registration]]:
    """Load the model, start the engine, then join the fleet; all of it ends with the block."""
    # The compute thread would keep the interpreter for 5 ms at a time, and every first token would wait for that.
    sys.setswitchinterval(SWITCH_S)
    model = await asyncio.to_thread(load_model, runtime.settings)
    parts = _parts(runtime, role_name, model)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(parts.engine.close)
        registrations = [
            Registration(
                vllm_engine_pb2_grpc.add_VllmEngineServicer_to_server,
                EngineService(parts, make_role(parts)),
                engine_service.SERVICE,
            ),
            Registration(worker_pb2_grpc.add_WorkerServicer_to_server, WorkerService(parts), worker_service.SERVICE),
        ]
        lease = await _join_fleet(runtime, parts.record, stack) if runtime.settings.state_url else None
        leaving = runtime.tasks.spawn(_leave(runtime.stopping, parts.engine, lease), name="leave before draining")

        async def have_left() -> None:
            if runtime.stopping.is_set():
                await leaving  # else the connection would close while the lease is taken back

        stack.push_async_callback(have_left)
        yield registrations


def _parts(runtime: Runtime[W], role_name: str, model: LoadedModel) -> WorkerParts:
    settings, runner = runtime.settings, model.runner
    layout, description = runner.layout, runner.model
    fingerprint = kv_fingerprint(description, layout, model.tokenizer.fingerprint)
    # A sequence must fit into the pool alone, or it could never finish.
    longest = min(description.max_model_len, settings.max_model_len or description.max_model_len)
    max_model_len = min(longest, runner.num_blocks * layout.block_size)
    stats = EngineStats(runtime.registry, description.name, block_size=layout.block_size, num_blocks=runner.num_blocks)

    def stop_serving() -> None:
        runtime.tasks.spawn(runtime.health.set_serving(False), name="engine crashed")

    engine = AsyncEngine(
        runner,
        CoreSettings(BatchLimits(settings.max_num_seqs, settings.step_tokens), max_model_len, fingerprint),
        stats=stats,
        events=KvEventLog(),
        pacer=model.pacer,
        max_waiting=settings.max_waiting,
        on_crash=stop_serving,
    )
    record = WorkerRecord(
        worker_id=settings.name(role_name),
        generation=new_generation(),
        role=role_name,
        address=runtime.address,
        model=description.name,
        fingerprint=fingerprint,
        block_size=layout.block_size,
        kv_blocks=runner.num_blocks,
        max_num_seqs=settings.max_num_seqs,
        max_model_len=max_model_len,
    )
    return WorkerParts(
        settings, runtime.telemetry, engine, stats, description, layout, model.tokenizer, model.files, record
    )


async def _join_fleet(runtime: Runtime[W], record: WorkerRecord, stack: AsyncExitStack) -> FleetPublisher:
    redis = connect(runtime.settings.state_url, max_connections=2)
    stack.push_async_callback(redis.aclose)
    return await stack.enter_async_context(FleetPublisher(redis, record, registry=runtime.registry))


async def _leave(stopping: asyncio.Event, engine: AsyncEngine, lease: FleetPublisher | None) -> None:
    """When the service begins to stop: no new work, and no stream that would never end by itself."""
    await stopping.wait()
    engine.steps.close()
    engine.events.close()
    if lease is not None:
        await lease.stop()
