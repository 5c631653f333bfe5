"""Real workers with the scripted engine, in this process, and a client that asks them what a gateway asks."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import grpc
from smg_grpc_proto.generated import vllm_engine_pb2 as pb
from smg_grpc_proto.generated import vllm_engine_pb2_grpc

from services.decode.app import build as build_decode
from services.decode.settings import DecodeSettings
from services.engine.worker.settings import WorkerSettings
from services.platform.failures import failure_of
from services.platform.server import Runtime, serving
from services.prefill.app import build as build_prefill
from services.prefill.settings import PrefillSettings
from services.tokenization.tokenizer import Tokenizer
from tokenpath.v1 import worker_pb2, worker_pb2_grpc
from tokenpath.v1.common_pb2 import StageReport, StageReports

TOKENIZER = Tokenizer.load("smollm2")
EOS = min(TOKENIZER.eos_token_ids)

DO_REMOTE_DECODE = '{"do_remote_decode":true,"do_remote_prefill":false}'


@dataclass
class Answer:
    """What came back: output tokens by choice (from chunks, or from completes when not streamed) and the ends."""

    tokens: dict[int, list[int]] = field(default_factory=dict)
    completes: dict[int, pb.GenerateComplete] = field(default_factory=dict)
    chunks: list[pb.GenerateStreamChunk] = field(default_factory=list)
    reports: list[StageReport] = field(default_factory=list)

    def text(self, index: int = 0) -> str:
        return TOKENIZER.decode(self.tokens[index])

    @property
    def handoff(self) -> str:
        return self.completes[max(self.completes)].kv_transfer_params_json

    def report(self, stage: str) -> StageReport:
        [found] = [report for report in self.reports if report.stage == stage]
        return found

    def note(self, stage: str, key: str) -> str:
        return self.report(stage).attributes.get(key, "")


@dataclass
class WorkerClient:
    """One running worker."""

    runtime: Runtime[Any]
    engine: vllm_engine_pb2_grpc.VllmEngineStub
    worker: worker_pb2_grpc.WorkerAsyncStub

    async def generate(self, request: pb.GenerateRequest, salt: str = "", timeout_s: float = 20.0) -> Answer:
        """Raises Failure as the worker meant it."""
        answer = Answer()
        call = self.engine.Generate(request, timeout=timeout_s, metadata=(("tokenpath-cache-salt", salt),))
        try:
            async for message in call:
                if message.HasField("chunk"):
                    answer.chunks.append(message.chunk)
                    answer.tokens.setdefault(message.chunk.index, []).extend(message.chunk.token_ids)
                else:
                    complete = message.complete
                    answer.completes[complete.index] = complete
                    assert answer.tokens.setdefault(complete.index, list(complete.output_ids)) == complete.output_ids
        except grpc.aio.AioRpcError as error:
            raise failure_of(error, "worker") from None
        for key, value in await call.trailing_metadata() or ():
            if key == "tokenpath-stages-bin":
                answer.reports = list(StageReports.FromString(value).reports)
        return answer

    async def load(self) -> worker_pb2.LoadState:
        described = await self.worker.Describe(worker_pb2.DescribeRequest(), timeout=5)
        return described.load

    def metric(self, name: str, **labels: str) -> float:
        return self.runtime.registry.get_sample_value(name, labels) or 0.0


def script(text: str = "", **keys: object) -> str:
    return "SCRIPT:" + json.dumps({"text": text, **keys} if text else keys)


def request(
    request_id: str, prompt: str | Sequence[int], *, stream: bool = True, transfer: str | None = None, **sampling: Any
) -> pb.GenerateRequest:
    ids = TOKENIZER.encode(prompt, add_special_tokens=False) if isinstance(prompt, str) else prompt
    return pb.GenerateRequest(
        request_id=request_id,
        tokenized=pb.TokenizedInput(input_ids=ids),
        sampling_params=pb.SamplingParams(**sampling),
        stream=stream,
        kv_transfer_params_json=transfer,
    )


@asynccontextmanager
async def running(name: str, settings: WorkerSettings, build: Callable[[Any], Any]) -> AsyncIterator[WorkerClient]:
    # Reading the same vocabulary again for every worker would be most of the tests' time.
    with patch.object(Tokenizer, "load", return_value=TOKENIZER):
        service = serving(name, settings, build)
        runtime = await service.__aenter__()
    try:
        channel = runtime.channels.get(runtime.address)
        yield WorkerClient(runtime, vllm_engine_pb2_grpc.VllmEngineStub(channel), worker_pb2_grpc.WorkerStub(channel))
    finally:
        await service.__aexit__(None, None, None)


def prefill_worker(**settings: Any) -> Any:
    """A context manager of a WorkerClient."""
    return running("prefill", PrefillSettings(**{"engine": "scripted", "drain_s": 1, **settings}), build_prefill)


def decode_worker(**settings: Any) -> Any:
    """A context manager of a WorkerClient."""
    return running("decode", DecodeSettings(**{"engine": "scripted", "drain_s": 1, **settings}), build_decode)
