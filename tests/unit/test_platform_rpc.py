"""What every hop promises: sizes, keepalive, deadlines, errors, trace context; over real gRPC servers."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from opentelemetry.context import Context
from opentelemetry.trace import get_current_span

from services.platform import limits
from services.platform.channels import Channels
from services.platform.context import RequestContext
from services.platform.deadlines import remaining_s, within
from services.platform.failures import Failure, abort_with, failure_of
from services.platform.server import Registration, Runtime, serving
from services.platform.settings import ServiceSettings, settings_config
from tokenpath.v1 import auth_pb2, auth_pb2_grpc, scheduler_pb2, scheduler_pb2_grpc


class EchoSettings(ServiceSettings):
    model_config = settings_config("echo")


class EchoAuth(auth_pb2_grpc.AuthServicer):
    """Answers with what it saw."""

    def __init__(self) -> None:
        self.seen: list[RequestContext] = []
        self.remaining: list[float | None] = []

    async def Authorize(self, request: auth_pb2.AuthorizeRequest, context: Any) -> auth_pb2.Grant:
        self.seen.append(RequestContext.from_grpc(context))
        self.remaining.append(remaining_s(context))
        if request.request_id == "refuse":
            await abort_with(
                context,
                Failure(
                    grpc.StatusCode.RESOURCE_EXHAUSTED, "come back", code="rate", param="model", retry_after_ms=250
                ),
            )
        return auth_pb2.Grant(tenant=request.request_id, cache_salt=request.key_digest.hex()[:8])


class SilentScheduler(scheduler_pb2_grpc.SchedulerServicer):
    """Holds its stream open without a word for prompt_tokens milliseconds."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()

    async def Admit(self, request: Any, context: Any) -> AsyncIterator[scheduler_pb2.AdmitUpdate]:
        self.entered.set()
        await asyncio.sleep(request.prompt_tokens / 1000)
        yield scheduler_pb2.AdmitUpdate(granted=scheduler_pb2.Granted(candidate=7))


@asynccontextmanager
async def echo_service(
    servicer: EchoAuth | None = None, scheduler: SilentScheduler | None = None
) -> AsyncIterator[Runtime[EchoSettings]]:
    @asynccontextmanager
    async def build(runtime: Runtime[EchoSettings]) -> AsyncIterator[list[Registration]]:
        yield [
            Registration(auth_pb2_grpc.add_AuthServicer_to_server, servicer or EchoAuth(), "tokenpath.v1.Auth"),
            Registration(
                scheduler_pb2_grpc.add_SchedulerServicer_to_server,
                scheduler or SilentScheduler(),
                "tokenpath.v1.Scheduler",
            ),
        ]

    async with serving("echo", EchoSettings(drain_s=1), build) as runtime:
        yield runtime


async def test_b073_a_message_at_the_limit_passes_and_one_above_is_refused_and_the_server_lives() -> None:
    async with echo_service() as runtime:
        stub = auth_pb2_grpc.AuthStub(runtime.channels.get(runtime.address))
        room = limits.MAX_MESSAGE_BYTES - auth_pb2.AuthorizeRequest(key_digest=b"x" * 1_000_000).ByteSize() + 1_000_000
        payload = b"x" * (room - 8)
        request = auth_pb2.AuthorizeRequest(key_digest=payload)
        assert limits.MAX_MESSAGE_BYTES - 16 < request.ByteSize() <= limits.MAX_MESSAGE_BYTES
        grant = await stub.Authorize(request, timeout=20)
        assert grant.cache_salt == payload.hex()[:8]
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Authorize(
                auth_pb2.AuthorizeRequest(key_digest=b"x" * (limits.MAX_MESSAGE_BYTES + 1)), timeout=20
            )
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await stub.Authorize(auth_pb2.AuthorizeRequest(request_id="next"), timeout=5)).tenant == "next"


@pytest.mark.parametrize("size", [128_000, 1_000_000, 3_900_000, 4_100_000, 16_000_000])
async def test_b073_sizes_around_grpcs_default_limit_pass_bit_exact(size: int) -> None:
    async with echo_service() as runtime:
        stub = auth_pb2_grpc.AuthStub(runtime.channels.get(runtime.address))
        text = "ab한" * (size // 5)
        assert (await stub.Authorize(auth_pb2.AuthorizeRequest(request_id=text), timeout=20)).tenant == text


def test_b074_servers_accept_pings_more_often_than_clients_send_them() -> None:
    server = dict(limits.server_options())
    client = dict(limits.client_options())
    assert server["grpc.http2.min_ping_interval_without_data_ms"] < client["grpc.keepalive_time_ms"]


async def test_b074_a_silent_call_survives_many_keepalive_pings() -> None:
    """The same options with a ping a second (the fastest that gRPC sends): too_many_pings ends it unless allowed."""
    server = grpc.aio.server(options=limits.server_options(min_ping_interval_ms=50))
    scheduler_pb2_grpc.add_SchedulerServicer_to_server(SilentScheduler(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(
        f"127.0.0.1:{port}", options=limits.client_options(keepalive_ms=300)
    ) as channel:
        stub = scheduler_pb2_grpc.SchedulerStub(channel)
        updates = [update async for update in stub.Admit(scheduler_pb2.AdmitRequest(prompt_tokens=5600), timeout=30)]
    await server.stop(0)
    assert updates[0].granted.candidate == 7


async def test_b076_deadlines_pass_on_and_none_stays_none() -> None:
    servicer = EchoAuth()
    async with echo_service(servicer) as runtime:
        stub = auth_pb2_grpc.AuthStub(runtime.channels.get(runtime.address))
        await stub.Authorize(auth_pb2.AuthorizeRequest(), timeout=5)
        await stub.Authorize(auth_pb2.AuthorizeRequest())
        with pytest.raises(grpc.aio.AioRpcError) as expired:
            await stub.Authorize(auth_pb2.AuthorizeRequest(), timeout=-1)
    assert expired.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert len(servicer.remaining) == 2  # the expired call did no work
    assert servicer.remaining[0] is not None
    assert 4 < servicer.remaining[0] < 5.1  # gRPC rounds a timeout up to whole hundredths
    assert servicer.remaining[1] is None
    assert within(None, 2.0) == 2.0
    assert within(0.5, 2.0) == 0.5


async def test_a_failure_keeps_its_detail_across_the_hop() -> None:
    async with echo_service() as runtime:
        stub = auth_pb2_grpc.AuthStub(runtime.channels.get(runtime.address))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Authorize(auth_pb2.AuthorizeRequest(request_id="refuse"), timeout=5)
    failure = failure_of(refused.value, "echo")
    assert (failure.status, failure.message, failure.code, failure.param, failure.retry_after_ms) == (
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "come back",
        "rate",
        "model",
        250,
    )


async def test_b086_a_trace_goes_on_and_a_malformed_one_starts_anew() -> None:
    servicer = EchoAuth()
    async with echo_service(servicer) as runtime:
        stub = auth_pb2_grpc.AuthStub(runtime.channels.get(runtime.address))
        with runtime.telemetry.stage("auth", parent=Context()) as stage:
            context = RequestContext("req_1", 2, "salt", stage.context)
            await stub.Authorize(auth_pb2.AuthorizeRequest(), metadata=context.metadata(), timeout=5)
            await stub.Authorize(auth_pb2.AuthorizeRequest(), metadata=(("traceparent", "00-zz-1"),), timeout=5)
    seen, malformed = servicer.seen
    assert (seen.request_id, seen.attempt, seen.cache_salt) == ("req_1", 2, "salt")
    assert f"{get_current_span(seen.trace).get_span_context().trace_id:032x}" == stage.trace_id
    assert not get_current_span(malformed.trace).get_span_context().is_valid


async def test_health_and_reflection_are_served() -> None:
    from grpc_health.v1 import health_pb2, health_pb2_grpc
    from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

    async with echo_service() as runtime:
        channel = runtime.channels.get(runtime.address)
        health = health_pb2_grpc.HealthStub(channel)
        for name in ("", "tokenpath.v1.Auth"):
            answer = await health.Check(health_pb2.HealthCheckRequest(service=name), timeout=5)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        await runtime.health.set_serving(False)
        answer = await health.Check(health_pb2.HealthCheckRequest(), timeout=5)
        assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING
        listing = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(
            iter([reflection_pb2.ServerReflectionRequest(list_services="")]), timeout=5
        )
        answer = await listing.read()
        names = {service.name for service in answer.list_services_response.service}
        await listing.read()
    assert {"tokenpath.v1.Auth", "tokenpath.v1.Scheduler", "grpc.health.v1.Health"} <= names


async def test_a_running_call_is_drained_and_a_dead_port_is_told_apart() -> None:
    scheduler = SilentScheduler()
    channels = Channels()
    async with echo_service(scheduler=scheduler) as runtime:
        stub = scheduler_pb2_grpc.SchedulerStub(channels.get(runtime.address))
        reading = asyncio.ensure_future(stub.Admit(scheduler_pb2.AdmitRequest(prompt_tokens=300), timeout=10).read())
        await asyncio.wait_for(scheduler.entered.wait(), 5)
    assert (await reading).granted.candidate == 7
    started = time.monotonic()
    with pytest.raises(grpc.aio.AioRpcError) as dead:
        await auth_pb2_grpc.AuthStub(channels.get(runtime.address)).Authorize(auth_pb2.AuthorizeRequest(), timeout=5)
    assert dead.value.code() is grpc.StatusCode.UNAVAILABLE
    assert time.monotonic() - started < 4
    await channels.close()
