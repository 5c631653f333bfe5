"""`vllm.grpc.engine.VllmEngine`, served by workers of both roles."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, NoReturn

import grpc
from opentelemetry.trace import SpanKind
from smg_grpc_proto.generated import common_pb2, vllm_engine_pb2, vllm_engine_pb2_grpc

from services.engine.outcome import Load
from services.engine.runner import Sampled
from services.engine.worker import mapping
from services.engine.worker.calls import CallStages, GenerateCall, Role, Update
from services.engine.worker.parts import WorkerParts
from services.platform.context import RequestContext
from services.platform.deadlines import remaining_s
from services.platform.failures import Failure, abort_with
from services.platform.stage_trailer import stages_trailer
from services.platform.telemetry import VERSION

log = logging.getLogger(__name__)

SERVICE = "vllm.grpc.engine.VllmEngine"

Context = grpc.aio.ServicerContext[Any, Any]


class EngineService(vllm_engine_pb2_grpc.VllmEngineServicer):
    """Answers are described in the contract; what this worker can't do is UNIMPLEMENTED or INVALID_ARGUMENT."""

    def __init__(self, parts: WorkerParts, role: Role) -> None:
        self._parts = parts
        self._engine = parts.engine
        self._role = role
        self._started = time.monotonic()
        self._last_request_unix_s = 0.0

    async def Generate(self, request: vllm_engine_pb2.GenerateRequest, context: Context) -> None:
        """Chunks and one GenerateComplete a choice; stage reports come in the trailing metadata, also of failures."""
        self._last_request_unix_s = time.time()
        caller = RequestContext.from_grpc(context)
        stage = self._parts.telemetry.stage(
            "generate", parent=caller.trace, kind=SpanKind.SERVER, rpc=f"{SERVICE}/Generate"
        )
        stages = CallStages(self._parts.telemetry, stage.context)
        stage.set("tokenpath.request_id", caller.request_id or request.request_id)
        stage.set("tokenpath.attempt", caller.attempt)
        with stage:
            try:
                if remaining_s(context) == 0.0:
                    raise _deadline_passed()
                call = mapping.generate_call(request, caller, self._parts.model.vocab_size, self._parts.tokenise)
                await self._role.generate(call, stages, Sender(call, context).send)
            except asyncio.CancelledError:
                # gRPC cancels this task when the caller leaves and when the deadline passes. A timer of our own would
                # race with it, and stop a write halfway.
                if remaining_s(context) == 0.0:
                    stage.end(_deadline_passed())
                raise
            except Exception as error:
                stage.end(error)
                await abort_with(context, _failure_of(error), stages_trailer(stages.reports))
        context.set_trailing_metadata(stages_trailer(stages.reports))

    async def Abort(self, request: vllm_engine_pb2.AbortRequest, context: Context) -> vllm_engine_pb2.AbortResponse:
        """Requests ("R") or single choices ("R/2"); they end with finish_reason "abort"."""
        self._engine.abort(request.request_ids)
        return vllm_engine_pb2.AbortResponse()

    async def HealthCheck(
        self, request: vllm_engine_pb2.HealthCheckRequest, context: Context
    ) -> vllm_engine_pb2.HealthCheckResponse:
        if self._engine.crashed:
            return vllm_engine_pb2.HealthCheckResponse(healthy=False, message="the engine has stopped")
        return vllm_engine_pb2.HealthCheckResponse(healthy=True, message="serving")

    async def GetModelInfo(
        self, request: vllm_engine_pb2.GetModelInfoRequest, context: Context
    ) -> vllm_engine_pb2.GetModelInfoResponse:
        model, length = self._parts.model, self._engine.settings.max_model_len
        return vllm_engine_pb2.GetModelInfoResponse(
            model_path=self._parts.settings.model,
            is_generation=True,
            max_context_length=length,
            vocab_size=model.vocab_size,
            served_model_name=model.name,
            tokenizer_path=str(self._parts.files.folder),
            model_type=model.architecture,
            architectures=[model.architecture],
            eos_token_ids=list(model.eos_token_ids),
            bos_token_id=self._parts.tokenizer.bos_token_id or 0,
            pad_token_id=model.eos_token_ids[0] if model.eos_token_ids else 0,
            max_req_input_len=length - 1,
        )

    async def GetServerInfo(
        self, request: vllm_engine_pb2.GetServerInfoRequest, context: Context
    ) -> vllm_engine_pb2.GetServerInfoResponse:
        layout, record = self._parts.layout, self._parts.record
        return vllm_engine_pb2.GetServerInfoResponse(
            active_requests=self._engine.live_requests,
            last_receive_timestamp=self._last_request_unix_s,
            uptime_seconds=time.monotonic() - self._started,
            server_type="vllm-grpc",
            kv_connector=self._role.kv_connector,
            kv_role=self._role.kv_role,
            kv_engine_id=f"{record.worker_id}:{record.generation}",
            data_parallel_size=1,
            kv_cache_dtype=layout.dtype,
            block_size=layout.block_size,
            model_dtype=layout.dtype,
            pairing_protocol=record.fingerprint,
            max_num_seqs=record.max_num_seqs,
        )

    async def GetLoads(
        self, request: vllm_engine_pb2.GetLoadsRequest, context: Context
    ) -> vllm_engine_pb2.GetLoadsResponse:
        return mapping.loads_response(self._load(self._engine.load, load_only=True, sample=0), VERSION)

    async def SubscribeKvEvents(
        self, request: common_pb2.SubscribeKvEventsRequest, context: Context
    ) -> AsyncIterator[common_pb2.KvEventBatch]:
        """A snapshot (or the history from the number asked for), then every change; see kv_events."""
        sample = 0
        with self._engine.events.subscribe(request.start_sequence_number) as subscription:
            while batches := await subscription.next():
                for batch in batches:
                    sample += 1
                    load = self._load(batch.load, load_only=batch.load_only, sample=sample)
                    yield mapping.kv_event_batch(batch, load)

    async def FlushCache(
        self, request: common_pb2.FlushCacheRequest, context: Context
    ) -> common_pb2.FlushCacheResponse:
        """Waits up to timeout_s for the engine to be idle."""
        give_up = time.monotonic() + min(max(request.timeout_s, 0.0), 60.0)
        while not await self._engine.clear_cache():
            if time.monotonic() >= give_up:
                return common_pb2.FlushCacheResponse(success=False, message="requests are running; nothing was flushed")
            await asyncio.sleep(0.02)
        return common_pb2.FlushCacheResponse(success=True, message="flushed")

    async def Embed(self, request: vllm_engine_pb2.EmbedRequest, context: Context) -> NoReturn:
        await _unimplemented(context, "Embed")

    async def StartProfile(self, request: common_pb2.StartProfileRequest, context: Context) -> NoReturn:
        await _unimplemented(context, "StartProfile")

    async def StopProfile(self, request: common_pb2.StopProfileRequest, context: Context) -> NoReturn:
        await _unimplemented(context, "StopProfile")

    async def GetTokenizer(self, request: common_pb2.GetTokenizerRequest, context: Context) -> None:
        await _unimplemented(context, "GetTokenizer")

    def _load(self, load: Load, *, load_only: bool, sample: int) -> common_pb2.EngineLoad:
        return mapping.engine_load(
            load,
            block_size=self._parts.layout.block_size,
            max_num_seqs=self._parts.record.max_num_seqs,
            tokens_per_s=self._parts.stats.tokens_per_s,
            hit_rate=self._parts.stats.hit_rate,
            load_only=load_only,
            sample=sample,
            silence_s=self._engine.silence_s,
        )


class Sender:
    """Writes a call's updates to its stream, as the caller asked for them: token by token, or only the ends."""

    def __init__(self, call: GenerateCall, context: Context) -> None:
        self._context = context
        self._stream = call.stream
        self._prompt_tokens = len(call.engine.prompt_ids)
        self._tokens: dict[int, list[Sampled]] = {index: [] for index in call.engine.choices}

    async def send(self, updates: Sequence[Update]) -> None:
        for update in updates:
            output = update.output
            tokens = self._tokens[output.index]
            tokens += output.tokens
            if self._stream and output.tokens:
                await self._context.write(mapping.chunk(update, self._prompt_tokens, len(tokens)))
            if output.finish:
                await self._context.write(mapping.complete(update, self._prompt_tokens, tokens))


def _deadline_passed() -> Failure:
    return Failure(grpc.StatusCode.DEADLINE_EXCEEDED, "the request's deadline has passed", code="timeout")


def _failure_of(error: Exception) -> Failure:
    if isinstance(error, Failure):
        return error
    log.error("a Generate call failed: %s", type(error).__name__, exc_info=error)
    return Failure(grpc.StatusCode.INTERNAL, f"the worker failed ({type(error).__name__}); its log says where")


async def _unimplemented(context: Context, method: str) -> NoReturn:
    await abort_with(context, Failure(grpc.StatusCode.UNIMPLEMENTED, f"this worker does not serve {method}"))
