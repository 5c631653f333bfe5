"""Wires and starts the receiver: OTLP/gRPC on its port, HTTP beside it, a Jaeger file when it stops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import uvicorn
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import add_TraceServiceServicer_to_server
from pydantic import Field

from services.local.collector.jaeger import write_jaeger_file
from services.local.collector.receiver import FULL_NAME, TraceReceiver
from services.local.collector.store import TraceStore
from services.local.collector.web import web_app
from services.platform.server import Registration, Runtime, run_service
from services.platform.settings import ServiceSettings, settings_config

JAEGER_FILE_TRACES = 100


class CollectorSettings(ServiceSettings):
    """`TOKENPATH_COLLECTOR_*`"""

    model_config = settings_config("collector")

    http_port: int = Field(default=0, ge=0, le=65535, description="traces as JSON; 0 takes a free one")
    max_traces: int = Field(default=1000, ge=1, description="traces kept")
    max_spans: int = Field(default=30_000, ge=1, description="spans kept, some KB each")
    jaeger_file: Path | None = Field(default=None, description="where the last traces are written on exit")


@asynccontextmanager
async def build(runtime: Runtime[CollectorSettings]) -> AsyncIterator[Sequence[Registration]]:
    """The receiver, with its HTTP server running while the block runs."""
    settings = runtime.settings
    store = TraceStore(settings.max_traces, settings.max_spans)
    config = uvicorn.Config(
        web_app(store),
        host=settings.host,
        port=settings.http_port,
        log_level="warning",
        access_log=False,
        lifespan="off",
    )
    web = _EmbeddedServer(config)
    serving = asyncio.create_task(web.serve(), name="collector-http")
    try:
        yield [Registration(add_TraceServiceServicer_to_server, TraceReceiver(store), FULL_NAME)]
    finally:
        web.should_exit = True
        await serving
        if settings.jaeger_file is not None:
            write_jaeger_file(store.latest(JAEGER_FILE_TRACES), settings.jaeger_file)


class _EmbeddedServer(uvicorn.Server):
    """A uvicorn server that leaves signals to the service around it."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def main() -> None:
    """`python -m services.local.collector`"""
    run_service("collector", CollectorSettings, build)
