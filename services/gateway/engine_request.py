"""A validated request -> the workers' `vllm.grpc.engine.GenerateRequest`. The only place that maps fields."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TypeVar

from smg_grpc_proto.generated import vllm_engine_pb2

from services.gateway.prompts import Prompt
from services.gateway.validation.sampling import SamplingFields

T = TypeVar("T")


@dataclass(frozen=True)
class Ask:
    """What one prompt asks of the engine."""

    body: SamplingFields
    prompt: Prompt
    seed: int

    @property
    def choices(self) -> int:
        """n."""
        return self.body.n or 1


REMOTE_DECODE = '{"do_remote_decode":true,"do_remote_prefill":false}'
"""Tells a prefill worker to publish the prompt's KV and answer with a hand-off descriptor."""

_LEAST = 1e-30  # smaller ones would be 0 in the contract's 32 bits, and 0 there means "not set"


def fold_seed(seed: int) -> int:
    """A 64-bit seed as the int32 that the engine's contract has: itself when it fits, else its halves XORed."""
    folded = seed & 0xFFFFFFFF if -(2**31) <= seed < 2**31 else (seed ^ (seed >> 32)) & 0xFFFFFFFF
    return folded - 2**32 if folded >= 2**31 else folded


def chosen_seed(body: SamplingFields) -> int:
    """The client's seed, or a random one: prefill and decode must draw from the same."""
    return secrets.randbits(31) if body.seed is None else fold_seed(body.seed)


def engine_request(request_id: str, ask: Ask, kv_transfer: str | None) -> vllm_engine_pb2.GenerateRequest:
    """Stop strings are left out: the detokenizer looks for them, because only it sees text."""
    body = ask.body
    sampling = vllm_engine_pb2.SamplingParams(
        temperature=_or(body.temperature, 1.0),
        top_p=max(_or(body.top_p, 1.0), _LEAST),
        top_k=max(_or(body.top_k, 0), 0),  # -1 and 0 both mean "all tokens"
        min_p=_or(body.min_p, 0.0),
        frequency_penalty=_or(body.frequency_penalty, 0.0),
        presence_penalty=_or(body.presence_penalty, 0.0),
        repetition_penalty=max(_or(body.repetition_penalty, 1.0), _LEAST),
        max_tokens=ask.prompt.max_tokens,
        min_tokens=_or(body.min_tokens, 0),
        ignore_eos=bool(body.ignore_eos),
        stop_token_ids=body.stop_token_ids or (),
        skip_special_tokens=_or(body.skip_special_tokens, True),
        n=ask.choices,
        seed=ask.seed,
        logit_bias=body.logit_bias,
        logprobs=body.top_logprobs_wanted,
    )
    return vllm_engine_pb2.GenerateRequest(
        request_id=request_id,
        tokenized=vllm_engine_pb2.TokenizedInput(input_ids=ask.prompt.token_ids),
        sampling_params=sampling,
        stream=True,
        kv_transfer_params_json=kv_transfer,
    )


def _or(value: T | None, default: T) -> T:
    return default if value is None else value
