"""A decode worker that says what a test tells it to, over real gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from smg_grpc_proto.generated.vllm_engine_pb2 import AbortRequest, AbortResponse, GenerateRequest, GenerateResponse
from smg_grpc_proto.generated.vllm_engine_pb2_grpc import VllmEngineServicer, add_VllmEngineServicer_to_server

from services.platform.failures import Failure, abort_with
from services.platform.limits import server_options
from tokenpath.v1.common_pb2 import StageReport, StageReports

Step = GenerateResponse | Failure | Callable[["StandInDecode"], Awaitable[None]]


@dataclass
class StandInDecode(VllmEngineServicer):  # type: ignore[misc]
    """`script` is what the next Generate does: messages to send, a failure to end with, or something to await."""

    script: list[Step] = field(default_factory=list)
    address: str = ""
    requests: list[GenerateRequest] = field(default_factory=list)
    metadata: list[dict[str, Any]] = field(default_factory=list)
    remaining_s: list[float] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    abort_arrived: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    refuses_aborts: bool = False

    async def Generate(self, request: GenerateRequest, context: Any) -> None:
        self.requests.append(request)
        self.metadata.append(dict(context.invocation_metadata()))
        self.remaining_s.append(context.time_remaining())
        reports = StageReports(reports=[StageReport(stage="decode", service="decode", duration_ns=5)])
        trailers = (("tokenpath-stages-bin", reports.SerializeToString()),)
        try:
            for step in self.script:
                if isinstance(step, GenerateResponse):
                    await context.write(step)
                elif isinstance(step, Failure):
                    await abort_with(context, step, trailers)
                else:
                    await step(self)
            context.set_trailing_metadata(trailers)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    async def Abort(self, request: AbortRequest, context: Any) -> AbortResponse:
        if self.refuses_aborts:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "not today")
        self.aborted += request.request_ids
        self.abort_arrived.set()
        return AbortResponse()


async def until_aborted(decode: StandInDecode) -> None:
    await decode.abort_arrived.wait()


async def for_ever(decode: StandInDecode) -> None:
    await asyncio.Event().wait()


@asynccontextmanager
async def running_decode() -> AsyncIterator[StandInDecode]:
    server = grpc.aio.server(options=server_options())
    decode = StandInDecode(address=f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
    add_VllmEngineServicer_to_server(decode, server)
    await server.start()
    try:
        yield decode
    finally:
        await server.stop(0)


def chunk(*token_ids: int, index: int = 0, prompt_tokens: int = 7, cached_tokens: int = 3) -> GenerateResponse:
    message = GenerateResponse()
    message.chunk.token_ids.extend(token_ids)
    message.chunk.index = index
    message.chunk.prompt_tokens = prompt_tokens
    message.chunk.cached_tokens = cached_tokens
    return message


def complete(reason: str, tokens: int, index: int = 0) -> GenerateResponse:
    message = GenerateResponse()
    message.complete.finish_reason = reason
    message.complete.completion_tokens = tokens
    message.complete.index = index
    message.complete.prompt_tokens = 7
    return message
