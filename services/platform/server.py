"""The harness of every service: a gRPC server with health and reflection that drains on SIGTERM."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import grpc
import uvloop
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection
from prometheus_client import CollectorRegistry

from services.platform import logs
from services.platform.channels import Channels
from services.platform.limits import server_options
from services.platform.metrics import MetricsServer, new_registry
from services.platform.settings import ServiceSettings, load_settings
from services.platform.startup import StartupError
from services.platform.tasks import TaskOwner
from services.platform.telemetry import Telemetry

log = logging.getLogger(__name__)

S = TypeVar("S", bound=ServiceSettings)

SIGNALS = (signal.SIGTERM, signal.SIGINT)
SWITCH_S = 0.0005
"""How long another thread (spans being encoded, a step being prepared) may keep the event loop from running. Python's
default of 5 ms would show in every token that arrives in that time."""


@dataclass(frozen=True)
class Registration:
    """A servicer to serve: the generated `add_..._to_server`, the object, and the service's full name."""

    add: Callable[[Any, Any], None]
    servicer: object
    full_name: str


class Health:
    """grpc.health.v1: SERVING means "can serve now". The empty service name speaks for the whole process."""

    def __init__(self) -> None:
        self.servicer = HealthServicer()
        self.names: list[str] = [""]

    async def set_serving(self, serving: bool) -> None:
        """Say for every service of this process whether it can serve now."""
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in self.names:
            await self.servicer.set(name, status)


@dataclass
class Runtime(Generic[S]):
    """What a service is built from. `address` is the bound host:port, known before `build` runs."""

    settings: S
    telemetry: Telemetry
    registry: CollectorRegistry
    address: str
    channels: Channels = field(default_factory=Channels)
    tasks: TaskOwner = field(default_factory=TaskOwner)
    health: Health = field(default_factory=Health)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)


Build = Callable[[Runtime[S]], AbstractAsyncContextManager[Sequence[Registration]]]


def run_service(name: str, settings_cls: type[S], build: Build[S]) -> None:
    """Run a service until SIGTERM or SIGINT: settings, telemetry, servers, drain. Exits 1 on a StartupError."""
    logs.configure(name)
    sys.setswitchinterval(SWITCH_S)
    try:
        uvloop.run(_run_until_signal(name, load_settings(settings_cls), build))
    except StartupError as error:
        sys.exit(f"tokenpath {name}: {error}")


async def _run_until_signal(name: str, settings: S, build: Build[S]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        # Before it serves there is nothing to drain, and a thread that loads a model can't be cancelled.
        loop.add_signal_handler(number, os._exit, 128 + number)
    async with serving(name, settings, build) as runtime:
        for number in SIGNALS:
            loop.add_signal_handler(number, stop.set)
        log.info("%s %s serves on %s", name, settings.instance, runtime.address)
        await stop.wait()
        log.info("%s drains for up to %.0f s", name, settings.drain_s)


@asynccontextmanager
async def serving(name: str, settings: S, build: Build[S]) -> AsyncIterator[Runtime[S]]:
    """The service, serving while the block runs; leaving the block drains it. Tests use it in their own process."""
    registry = new_registry()
    server = grpc.aio.server(options=server_options())
    port = _bind(server, settings)
    telemetry = Telemetry(name, settings.instance, registry)
    runtime = Runtime(settings, telemetry, registry, f"{settings.host}:{port}")
    metrics = MetricsServer(registry, settings.host, settings.metrics_port) if settings.metrics_port else None
    try:
        async with build(runtime) as registrations:
            runtime.health.names += [registration.full_name for registration in registrations]
            for registration in registrations:
                registration.add(registration.servicer, server)
            health_pb2_grpc.add_HealthServicer_to_server(runtime.health.servicer, server)
            reflection.enable_server_reflection(
                [*runtime.health.names[1:], "grpc.health.v1.Health", reflection.SERVICE_NAME], server
            )
            await runtime.health.set_serving(True)
            await server.start()
            _settle_memory()
            try:
                yield runtime
            finally:
                runtime.stopping.set()
                await runtime.health.set_serving(False)
                await server.stop(settings.drain_s)
    finally:
        await runtime.tasks.close()
        await runtime.channels.close()
        if metrics is not None:
            metrics.close()
        telemetry.close()


def _settle_memory() -> None:
    """Take what was loaded (a vocabulary is a hundred thousand objects) out of the garbage collector's rounds, which
    would otherwise stop the loop for tens of milliseconds."""
    gc.collect()
    gc.freeze()


def _bind(server: grpc.aio.Server, settings: ServiceSettings) -> int:
    address = f"{settings.host}:{settings.port}"
    try:
        return server.add_insecure_port(address)
    except RuntimeError as error:
        raise StartupError(f"can't listen on {address} (is it in use?); set another PORT: {error}") from None
