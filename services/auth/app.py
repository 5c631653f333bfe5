"""Wires auth and starts it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from services.auth.prices import load_prices
from services.auth.readiness import watch_redis
from services.auth.service import AuthService
from services.auth.settings import AuthSettings
from services.auth.state import DEADLINE_S
from services.platform.redis import connect
from services.platform.server import Registration, Runtime, run_service
from tokenpath.v1.auth_pb2_grpc import add_AuthServicer_to_server


@asynccontextmanager
async def build(runtime: Runtime[AuthSettings]) -> AsyncIterator[Sequence[Registration]]:
    redis = connect(runtime.settings.state_url, timeout_s=DEADLINE_S)
    service = AuthService(redis, load_prices(runtime.settings.prices), runtime.telemetry, runtime.registry)
    runtime.tasks.spawn(watch_redis(redis, runtime), name="watch the state Redis")
    try:
        yield [Registration(add_AuthServicer_to_server, service, "tokenpath.v1.Auth")]
    finally:
        await redis.aclose()


def main() -> None:
    run_service("auth", AuthSettings, build)
