"""Auth served in the test's own process, with a client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from redis.asyncio import Redis
from redis.utils import str_if_bytes

from services.auth.app import build
from services.auth.keys import digest_of
from services.auth.settings import AuthSettings
from services.platform.server import Runtime, serving
from tokenpath.v1 import auth_pb2, auth_pb2_grpc, common_pb2


@dataclass(frozen=True)
class AuthClient:
    runtime: Runtime[AuthSettings]
    channel: grpc.aio.Channel
    stub: auth_pb2_grpc.AuthAsyncStub

    async def authorize(self, key: str) -> auth_pb2.Grant:
        return await self.stub.Authorize(
            auth_pb2.AuthorizeRequest(request_id="req_1", key_digest=digest_of(key)), timeout=5
        )

    async def settle(self, request_id: str, **fields: Any) -> auth_pb2.Receipt:
        return await self.stub.Settle(settle_request(request_id, **fields), timeout=5)


def settle_request(request_id: str, **fields: Any) -> auth_pb2.SettleRequest:
    values: dict[str, Any] = {
        "key_id": "key_1",
        "tenant": "demo",
        "model": "SmolLM2-135M-Instruct",
        "usage": common_pb2.Usage(prompt_tokens=100, completion_tokens=10, cached_tokens=40),
        "outcome": auth_pb2.OUTCOME_DONE,
        "attempts": 1,
        "started_unix_ms": 1_700_000_000_000,
    }
    return auth_pb2.SettleRequest(request_id=request_id, **(values | fields))


@asynccontextmanager
async def auth_service(state_url: str) -> AsyncIterator[AuthClient]:
    settings = AuthSettings(state_url=state_url, instance="auth-test", drain_s=0)
    async with serving("auth", settings, build) as runtime, grpc.aio.insecure_channel(runtime.address) as channel:
        yield AuthClient(runtime, channel, auth_pb2_grpc.AuthStub(channel))


async def rows(redis: Redis) -> list[dict[str, str]]:
    """The whole ledger."""
    entries = await redis.xrange("tp:ledger")
    assert entries is not None
    return [
        {str_if_bytes(name): str_if_bytes(value) for name, value in (fields or {}).items()} for _, fields in entries
    ]
