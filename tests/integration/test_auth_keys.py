"""Stage 3: who asks. A real Redis, a real gRPC server."""

import asyncio
import logging
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator

import grpc
import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from redis.asyncio import Redis

from services.auth.keys import create_key, digest_of, find_key
from services.platform.redis import connect
from tests.auth_harness import AuthClient, auth_service
from tests.latency_proxy import latency_proxy
from tests.redis_server import RedisServer, redis_server
from tokenpath.v1 import auth_pb2


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with redis_server() as running:
        yield running


@pytest.fixture
async def redis(server: RedisServer) -> AsyncIterator[Redis]:
    client = connect(server.url)
    await client.flushall()
    yield client
    await client.aclose()


@pytest.fixture
async def auth(server: RedisServer, redis: Redis) -> AsyncIterator[AuthClient]:
    async with auth_service(server.url) as client:
        yield client


async def refusal(auth: AuthClient, digest: bytes) -> tuple[grpc.StatusCode, str | None]:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await auth.stub.Authorize(auth_pb2.AuthorizeRequest(request_id="r", key_digest=digest), timeout=5)
    return error.value.code(), error.value.details()


async def test_a_key_gets_its_tenants_grant_and_a_report(auth: AuthClient, redis: Redis) -> None:
    key = await create_key(redis, "acme", tier="gold", priority=-3)
    grant = await auth.authorize(key)
    assert key.startswith("tp-")
    assert len(key) > 40
    assert (grant.tenant, grant.tier, grant.priority) == ("acme", "gold", -3)
    assert grant.key_id
    assert len(grant.cache_salt) >= 32
    assert (grant.report.stage, grant.report.service, grant.report.instance) == ("auth", "auth", "auth-test")
    assert 0 < sum(part.duration_ns for part in grant.report.parts) <= grant.report.duration_ns


async def test_b071_whatever_is_wrong_with_a_key_the_answer_is_the_same(auth: AuthClient, redis: Redis) -> None:
    digest = digest_of(await create_key(redis, "acme"))
    near = digest[:-1] + bytes([digest[-1] ^ 1])
    answers = {
        await refusal(auth, bad) for bad in (near, b"", digest[:31], digest + b"\0", b"\0" * 32, b"x" * 1_000_000)
    }
    assert answers == {(grpc.StatusCode.UNAUTHENTICATED, "Incorrect API key provided.")}


async def test_b059_a_tenant_has_one_salt_and_no_other_tenant_has_it(auth: AuthClient, redis: Redis) -> None:
    keys = [
        *await asyncio.gather(*(create_key(redis, f"tenant-{n % 2}") for n in range(20))),
        *await asyncio.gather(*(create_key(redis, f"tenant-{n % 2}") for n in range(20))),
    ]
    grants = [await auth.authorize(key) for key in keys]
    assert len({(grant.tenant, grant.cache_salt) for grant in grants}) == 2
    assert len({grant.cache_salt for grant in grants}) == 2
    assert len({grant.key_id for grant in grants}) == 40


async def test_b062_neither_key_nor_digest_is_told_to_anybody(
    auth: AuthClient, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    spans = InMemorySpanExporter()
    auth.runtime.telemetry._provider.add_span_processor(SimpleSpanProcessor(spans))
    key = await create_key(redis, "acme")
    grant = await auth.authorize(key)
    bad = digest_of("tp-nobody's")
    await refusal(auth, bad)
    told = caplog.text + str(grant) + "".join(span.to_json() for span in spans.get_finished_spans())
    assert len(spans.get_finished_spans()) == 2
    for secret in (key, digest_of(key).hex(), bad.hex()):
        assert secret not in told
    stored = [await redis.hgetall(name) for name in await redis.keys()]
    assert key not in str(stored)


@pytest.mark.parametrize("damage", [("priority", "high"), ("digest", "00" * 32), ("digest", "?")])
async def test_a_damaged_record_lets_nobody_in(auth: AuthClient, redis: Redis, damage: tuple[str, str]) -> None:
    digest = digest_of(await create_key(redis, "acme"))
    await redis.hset(f"tp:key:{digest.hex()}", *damage)
    assert (await refusal(auth, digest))[0] is grpc.StatusCode.UNAVAILABLE


async def test_the_provision_command_prints_a_working_key(auth: AuthClient, server: RedisServer) -> None:
    command = [sys.executable, "-m", "services.auth.provision", "--state-url", server.url, "--tenant", "demo"]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=30, check=True)
    assert (await auth.authorize(done.stdout.strip())).tenant == "demo"


async def test_the_provision_command_says_when_redis_is_not_there() -> None:
    command = [sys.executable, "-m", "services.auth.provision", "--state-url", "redis://127.0.0.1:1", "--tenant", "x"]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "is the state Redis up" in done.stderr
    assert "Traceback" not in done.stderr


async def test_b087_a_cancelled_lookup_never_leaves_its_reply_to_another(server: RedisServer, redis: Redis) -> None:
    """500 lookups with 100 ms to Redis, a third cancelled at random moments."""
    rng = random.Random(87)
    keys = [await create_key(redis, f"tenant-{n}") for n in range(500)]
    async with latency_proxy(server.port, 0.1) as proxy:
        slow = connect(proxy.redis_url, max_connections=100, timeout_s=10)

        async def look_up(number: int) -> None:
            record = await find_key(slow, digest_of(keys[number]))
            assert record is not None
            assert record.tenant == f"tenant-{number}"

        tasks = [asyncio.create_task(look_up(number)) for number in range(500)]
        for task in rng.sample(tasks, 167):
            asyncio.get_running_loop().call_later(rng.uniform(0, 0.8), task.cancel)
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert [o for o in outcomes if o is not None and not isinstance(o, asyncio.CancelledError)] == []
        assert sum(isinstance(o, asyncio.CancelledError) for o in outcomes) > 100
        await asyncio.wait_for(asyncio.gather(*map(look_up, range(100))), 5)
        await slow.aclose()
