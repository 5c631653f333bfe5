"""Ranges of what a caller may ask for: one bad number must not reach the batch that all share."""

from __future__ import annotations

import math

import grpc

from services.engine.sampling_params import SamplingParams
from services.platform.failures import Failure

MAX_CHOICES = 128
MAX_LOGPROBS = 20
MAX_TOKENS_NAMED = 1024
"""Entries of logit_bias and of stop_token_ids: each of them costs every step of the batch."""

_RANGES = {
    "temperature": (0.0, 2.0),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.0, 10.0),
    "frequency_penalty": (-2.0, 2.0),
    "presence_penalty": (-2.0, 2.0),
}


def invalid(param: str, what: str) -> Failure:
    """The caller's fault; `param` names the field."""
    return Failure(grpc.StatusCode.INVALID_ARGUMENT, f"{param} {what}", param=param)


def check_sampling(sampling: SamplingParams, vocab_size: int) -> None:
    """Raises Failure (INVALID_ARGUMENT) naming the first field that is out of range."""
    for name, (low, high) in _RANGES.items():
        value = getattr(sampling, name)
        if not (math.isfinite(value) and low <= value <= high):
            raise invalid(name, f"must be between {low:g} and {high:g}")
    if sampling.max_tokens is not None and sampling.max_tokens < 1:
        raise invalid("max_tokens", "must be at least 1")
    if sampling.logprobs is not None and not 0 <= sampling.logprobs <= MAX_LOGPROBS:
        raise invalid("logprobs", f"must be between 0 and {MAX_LOGPROBS}")
    for name in ("stop_token_ids", "logit_bias"):
        if len(getattr(sampling, name)) > MAX_TOKENS_NAMED:
            raise invalid(name, f"must have at most {MAX_TOKENS_NAMED} entries")
    if any(not 0 <= token_id < vocab_size for token_id in sampling.stop_token_ids):
        raise invalid("stop_token_ids", f"must be below the vocabulary's {vocab_size}")
    for token_id, bias in sampling.logit_bias.items():
        if not 0 <= token_id < vocab_size:
            raise invalid("logit_bias", f"has token {token_id}; the vocabulary has {vocab_size}")
        if not -100 <= bias <= 100:
            raise invalid("logit_bias", "must be between -100 and 100")


def check_prompt(prompt_ids: tuple[int, ...], vocab_size: int) -> None:
    """Raises Failure (INVALID_ARGUMENT) for a prompt that no model can be given."""
    if not prompt_ids:
        raise invalid("prompt", "must have at least one token")
    if max(prompt_ids) >= vocab_size:
        raise invalid("prompt", f"has token {max(prompt_ids)}; the vocabulary has {vocab_size}")


def check_choices(n: int) -> int:
    """How many choices `n` asks for (0: one)."""
    if n > MAX_CHOICES:
        raise invalid("n", f"must be at most {MAX_CHOICES}")
    return n or 1
