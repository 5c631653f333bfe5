"""Wiring: settings and channels in, a running OpenAI-compatible API out."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from services.gateway.api.arrival import Arrival
from services.gateway.api.chat import CHAT
from services.gateway.api.completions import COMPLETIONS
from services.gateway.api.generate import GenerateEndpoint
from services.gateway.api.guarded import error_response, guarded
from services.gateway.api.health import HealthEndpoint
from services.gateway.api.journeys import JourneysEndpoint
from services.gateway.api.models import ModelsEndpoint
from services.gateway.api.tokenize import TokenizeEndpoint
from services.gateway.clients.auth import AuthClient
from services.gateway.clients.detokenizer import DetokenizerClient
from services.gateway.clients.prefill import PrefillClient
from services.gateway.clients.router import RouterClient
from services.gateway.clients.scheduler import SchedulerClient
from services.gateway.errors import ApiError, echo, shutting_down
from services.gateway.fleet_view import FleetView
from services.gateway.gateway import Gateway
from services.gateway.http_server import HttpServer
from services.gateway.journey.store import JourneyStore
from services.gateway.leash import Leashes
from services.gateway.ledger_outbox import LedgerOutbox
from services.gateway.metrics import GatewayMetrics
from services.gateway.pipeline import Pipeline
from services.gateway.settings import GatewaySettings
from services.platform.server import Registration, Runtime, run_service
from services.tokenization.tokenizer import Tokenizer

log = logging.getLogger(__name__)

_FLUSH_S = 5.0  # what unwritten ledger rows get at the end
_LAST_WORDS_S = 2  # after the drain: time for error events to leave


def main() -> None:
    """Run the gateway until SIGTERM."""
    run_service("gateway", GatewaySettings, build)


@asynccontextmanager
async def build(runtime: Runtime[GatewaySettings]) -> AsyncIterator[Sequence[Registration]]:
    """Serve HTTP while the block runs; leaving it drains: not ready, nothing new, answers end, rows are written."""
    settings = runtime.settings
    gateway = await _gateway(runtime)
    await gateway.fleet.refresh()
    runtime.tasks.spawn(gateway.fleet.poll(settings.fleet_poll_s), name="fleet view")
    health = HealthEndpoint(settings, runtime.channels, gateway.fleet, runtime.registry)
    server = HttpServer(
        application(gateway, health), settings.host, settings.http_port, settings.drain_s + _LAST_WORDS_S
    )
    await server.start()
    log.info("the API is at http://%s/v1", server.address)
    try:
        yield ()
    finally:
        health.drain()
        await asyncio.gather(server.stop(), gateway.leashes.drain(settings.drain_s, shutting_down()))
        await gateway.outbox.flush(_FLUSH_S)


async def _gateway(runtime: Runtime[GatewaySettings]) -> Gateway:
    settings, channels = runtime.settings, runtime.channels
    tokenizer = await asyncio.to_thread(Tokenizer.load, settings.model)
    metrics = GatewayMetrics(runtime.registry)
    cap_s = settings.control_timeout_s
    auth = AuthClient(channels, settings.auth_address, cap_s)
    router = RouterClient(channels, settings.router_address, cap_s)
    pipeline = Pipeline(
        router=router,
        scheduler=SchedulerClient(channels, settings.scheduler_address),
        prefill=PrefillClient(channels, settings.prefill_timeout_s),
        detokenizer=DetokenizerClient(channels, settings.detokenizer_address),
        metrics=metrics,
    )
    return Gateway(
        settings=settings,
        telemetry=runtime.telemetry,
        metrics=metrics,
        tokenizer=tokenizer,
        auth=auth,
        pipeline=pipeline,
        outbox=LedgerOutbox(auth, metrics, runtime.tasks, wait_s=settings.settle_wait_s, capacity=settings.outbox_rows),
        fleet=FleetView(router, tokenizer.max_model_len),
        journeys=JourneyStore(settings.journeys),
        leashes=Leashes(),
        started_unix=int(time.time()),
    )


def application(gateway: Gateway, health: HealthEndpoint) -> Starlette:
    """The routes."""
    models, tokens, journeys = ModelsEndpoint(gateway), TokenizeEndpoint(gateway), JourneysEndpoint(gateway)
    routes = [
        Route("/v1/chat/completions", GenerateEndpoint(gateway, CHAT), methods=["POST"]),
        Route("/v1/completions", GenerateEndpoint(gateway, COMPLETIONS), methods=["POST"]),
        Route("/v1/models", guarded(gateway, "models", models.list), methods=["GET"]),
        Route("/v1/models/{name:path}", guarded(gateway, "models", models.one), methods=["GET"]),
        Route("/v1/journeys/{name}", guarded(gateway, "journeys", journeys.one), methods=["GET"]),
        Route("/tokenize", guarded(gateway, "tokenize", tokens.tokenize), methods=["POST"]),
        Route("/detokenize", guarded(gateway, "detokenize", tokens.detokenize), methods=["POST"]),
        Route("/health", health.alive, methods=["GET"]),
        Route("/ping", health.alive, methods=["GET"]),
        Route("/health/ready", health.ready, methods=["GET"]),
        Route("/version", health.version, methods=["GET"]),
        Route("/metrics", health.metrics, methods=["GET"]),
    ]
    return Starlette(routes=routes, exception_handlers={HTTPException: _http_error})


async def _http_error(request: Request, error: Exception) -> Response:
    """What no endpoint answers: an unknown path (404) or a wrong method (405)."""
    assert isinstance(error, HTTPException)
    headers, asked = error.headers or {}, f"{request.method} {echo(request.url.path)}"
    if error.status_code == 405:
        failure = ApiError(405, f"{asked}: this path takes {headers.get('Allow')} only", code="method_not_allowed")
    else:
        failure = ApiError(
            error.status_code, f"{asked}: there is no such path; README.md lists them", code="unknown_url"
        )
    response = error_response(failure)
    response.headers.update(headers)
    Arrival.of(request.scope).name(response)
    return response
