"""What a StreamRequest asks for, checked."""

from __future__ import annotations

from dataclasses import dataclass

import grpc
from google.protobuf.message import DecodeError
from smg_grpc_proto.generated.vllm_engine_pb2 import GenerateRequest

from services.detokenizer.choice import OutputRules
from services.detokenizer.stop_strings import StopStrings
from services.platform.failures import Failure
from services.tokenization.tokenizer import Tokenizer
from services.tokenization.utf8 import LONGEST_TAIL, incomplete_tail
from tokenpath.v1.detokenizer_pb2 import StreamRequest

_MOST_CHOICES = 128


@dataclass(frozen=True)
class StreamPlan:
    engine_request_id: str  # by which the worker knows the request
    choices: int
    rules: OutputRules

    def sequence_id(self, index: int) -> str:
        """The name of one choice inside the worker."""
        return f"{self.engine_request_id}/{index}"


def plan_stream(request: StreamRequest, tokenizer: Tokenizer) -> StreamPlan:
    """Raises Failure (INVALID_ARGUMENT) that names the field."""
    choices = request.choices or 1
    if choices > _MOST_CHOICES:
        raise _invalid("choices", f"{choices} is more than {_MOST_CHOICES}")
    if not request.decode_address:
        raise _invalid("decode_address", "is empty")
    if len(request.prompt_tail) > LONGEST_TAIL:
        raise _invalid(
            "prompt_tail", f"is longer than {LONGEST_TAIL} bytes, so it is more than one unfinished character"
        )
    if not all(request.stop):
        raise _invalid("stop", "holds an empty string")
    try:
        engine_request = GenerateRequest.FromString(request.engine_request)
    except DecodeError as error:
        raise _invalid("engine_request", "is no vllm.grpc.engine.GenerateRequest") from error
    include_stop = request.include_stop_str_in_output
    return StreamPlan(
        engine_request_id=engine_request.request_id,
        choices=choices,
        rules=OutputRules(
            prompt_tail=incomplete_tail(request.prompt_tail),  # a finished character would be text of the prompt
            stop_strings=StopStrings(request.stop, include_in_output=include_stop) if request.stop else None,
            keep_special_tokens=request.keep_special_tokens,
            silent_ids=frozenset() if include_stop else _ending_ids(engine_request, tokenizer),
        ),
    )


def _ending_ids(engine_request: GenerateRequest, tokenizer: Tokenizer) -> frozenset[int]:
    sampling = engine_request.sampling_params
    eos = frozenset() if sampling.ignore_eos else tokenizer.eos_token_ids
    return eos | frozenset(sampling.stop_token_ids)


def _invalid(field: str, problem: str) -> Failure:
    return Failure(grpc.StatusCode.INVALID_ARGUMENT, f"StreamRequest.{field} {problem}", param=field)
