"""GET /health, /ping, /health/ready, /version and /metrics: for orchestrators and load tools, without a key."""

from __future__ import annotations

import asyncio

import grpc
import orjson
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.requests import Request
from starlette.responses import Response

from services.gateway.api.guarded import json_response
from services.gateway.fleet_view import FleetView
from services.gateway.settings import GatewaySettings
from services.platform.channels import Channels
from services.platform.telemetry import VERSION

_CHECK_S = 1.0


class HealthEndpoint:
    """Alive does not mean ready: ready is whether a request sent now would be served."""

    def __init__(
        self, settings: GatewaySettings, channels: Channels, fleet: FleetView, registry: CollectorRegistry
    ) -> None:
        self._peers = {
            "auth": settings.auth_address,
            "scheduler": settings.scheduler_address,
            "detokenizer": settings.detokenizer_address,
        }
        self._channels = channels
        self._fleet = fleet
        self._registry = registry
        self._draining = False

    def drain(self) -> None:
        """From now on not ready."""
        self._draining = True

    async def alive(self, request: Request) -> Response:
        """200 while the process runs."""
        return json_response(b'{"status":"ok"}')

    async def ready(self, request: Request) -> Response:
        """200 or 503, and which part is missing."""
        names = list(self._peers)
        answers = await asyncio.gather(*(self._serves(self._peers[name]) for name in names))
        checks = dict(zip(names, answers, strict=True))
        checks["fleet"] = self._fleet.can_serve
        checks["accepting"] = not self._draining
        ready = all(checks.values())
        body = {"status": "ready" if ready else "not ready", "checks": checks}
        return json_response(orjson.dumps(body), 200 if ready else 503)

    async def version(self, request: Request) -> Response:
        """`{"version"}`."""
        return json_response(orjson.dumps({"version": VERSION}))

    async def metrics(self, request: Request) -> Response:
        """Prometheus text."""
        return Response(generate_latest(self._registry), media_type=CONTENT_TYPE_LATEST)

    async def _serves(self, address: str) -> bool:
        stub = health_pb2_grpc.HealthStub(self._channels.get(address))
        try:
            answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=_CHECK_S)
        except grpc.aio.AioRpcError:
            return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
