"""Without its Redis auth says so within a second, and recovers alone."""

import asyncio
import signal
import time

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.auth.keys import create_key
from services.platform.redis import connect
from tests.auth_harness import AuthClient, auth_service
from tests.latency_proxy import latency_proxy
from tests.redis_server import RedisServer, redis_server
from tokenpath.v1 import common_pb2

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def unavailable(auth: AuthClient, key: str) -> None:
    """Both calls fail with UNAVAILABLE and advice after one deadline of 1 s: the rest is slack for a busy machine."""
    for call in (lambda: auth.authorize(key), lambda: auth.settle("req_1")):
        started = time.monotonic()
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await call()
        assert time.monotonic() - started < 1.8
        assert error.value.code() is grpc.StatusCode.UNAVAILABLE
        detail = common_pb2.ErrorDetail.FromString(dict(error.value.trailing_metadata() or ())["tokenpath-error-bin"])
        assert detail.retry_after_ms > 0
        assert detail.code == "service_unavailable"
        assert "127.0.0.1" not in detail.message


async def until_health(auth: AuthClient, status: int) -> None:
    async with asyncio.timeout(10):
        stub = health_pb2_grpc.HealthStub(auth.channel)
        async for update in stub.Watch(health_pb2.HealthCheckRequest(service="tokenpath.v1.Auth")):
            if update.status == status:
                return


async def new_key(server: RedisServer) -> str:
    redis = connect(server.url)
    try:
        return await create_key(redis, "acme")
    finally:
        await redis.aclose()


async def test_auth_starts_without_redis_and_serves_when_it_comes() -> None:
    with redis_server() as server:
        await asyncio.to_thread(server.stop)
        async with auth_service(server.url) as auth:
            await until_health(auth, NOT_SERVING)
            await unavailable(auth, "tp-any")
            await asyncio.to_thread(server.start)
            key = await new_key(server)
            assert (await auth.authorize(key)).tenant == "acme"
            await until_health(auth, SERVING)


async def test_b091_a_restart_of_redis_is_not_noticed_by_callers() -> None:
    with redis_server("--appendonly", "yes") as server:
        key = await new_key(server)
        async with auth_service(server.url) as auth:
            await asyncio.gather(*(auth.authorize(key) for _ in range(20)))
            await asyncio.to_thread(server.stop)
            await unavailable(auth, key)
            await asyncio.to_thread(server.start)
            grants = await asyncio.gather(*(auth.authorize(key) for _ in range(20)))
            assert {grant.tenant for grant in grants} == {"acme"}
            assert (await auth.settle("req_2")).duplicate is False


async def test_a_connection_that_breaks_under_a_lookup_is_replaced() -> None:
    with redis_server() as server:
        key = await new_key(server)
        async with latency_proxy(server.port, 0) as proxy, auth_service(proxy.redis_url) as auth:
            proxy.lose_reply_to = b"HGETALL"
            assert (await auth.authorize(key)).tenant == "acme"
            assert auth.runtime.registry.get_sample_value("tokenpath_auth_redis_retries_total") == 1


async def test_b093_a_frozen_redis_bounds_every_call_and_readiness_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with redis_server() as server:
        key = await new_key(server)
        async with auth_service(server.url) as auth:
            await auth.authorize(key)
            assert server.process is not None
            server.process.send_signal(signal.SIGSTOP)
            try:
                await asyncio.gather(*(unavailable(auth, key) for _ in range(40)))
                await until_health(auth, NOT_SERVING)
            finally:
                server.process.send_signal(signal.SIGCONT)
            assert (await auth.authorize(key)).tenant == "acme"
            await until_health(auth, SERVING)
    assert len([record for record in caplog.records if record.exc_info]) == 0
