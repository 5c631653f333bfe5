"""POST /v1/completions."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator

from services.gateway.validation.fields import MAX_CHOICES, problem
from services.gateway.validation.sampling import SamplingFields

Prompts = tuple[str, ...] | tuple[tuple[int, ...], ...]
_MAX_LOGPROBS = 20


def _is_token(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _prompts(value: Any) -> Prompts:
    """One prompt or several, as text or token ids -> a tuple of prompts, none of them empty."""
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list):
        raise problem("must be a string, a list of strings, a list of token ids or a list of lists of token ids")
    if value and all(_is_token(item) for item in value):
        value = [value]
    if not value or not all(value):
        raise problem("must not be empty, and neither may any prompt in it")
    if len(value) > MAX_CHOICES:
        raise problem(f"may hold at most {MAX_CHOICES} prompts")
    if all(isinstance(item, str) for item in value):
        return tuple(value)
    if all(isinstance(item, list) and all(_is_token(token) for token in item) for item in value):
        return tuple(tuple(item) for item in value)
    raise problem("must be a string, a list of strings, a list of token ids or a list of lists of token ids")


def _logprobs(value: Any) -> int | None:
    """null or false: none; true: the best alternative; 0 to 20: that many alternatives."""
    if value is None or value is False:
        return None
    if value is True:
        return 1
    if not isinstance(value, int) or not 0 <= value <= _MAX_LOGPROBS:
        raise problem(f"must be null or an integer from 0 to {_MAX_LOGPROBS}")
    return value


class CompletionsBody(SamplingFields):
    """A validated request. `prompt` is always a tuple of prompts."""

    prompt: Annotated[Prompts, BeforeValidator(_prompts)]
    logprobs: Annotated[int | None, BeforeValidator(_logprobs)] = None

    @property
    def top_logprobs_wanted(self) -> int | None:
        return self.logprobs
