"""The sampling fields of both endpoints."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from services.gateway.validation.fields import (
    MAX_CHOICES,
    Body,
    Count,
    LogitBias,
    Number,
    Seed,
    Stops,
    StopTokens,
    problem_at,
)


class StreamOptions(Body):
    """`stream_options`."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class SamplingFields(Body):
    """Ranges are OpenAI's where OpenAI has the field, vLLM's for the rest. `top_p` 0 is refused: it has no meaning."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    ignore_eos: bool | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    stop: Stops = ()
    stop_token_ids: StopTokens | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    temperature: Annotated[Number, Field(ge=0, le=2)] | None = None
    top_p: Annotated[Number, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    min_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    frequency_penalty: Annotated[Number, Field(ge=-2, le=2)] | None = None
    presence_penalty: Annotated[Number, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[Number, Field(gt=0, le=10)] | None = None
    seed: Seed = None
    logit_bias: LogitBias = Field(default_factory=dict)
    user: str | None = None
    cache_salt: str | None = None

    @model_validator(mode="after")
    def _options_only_when_streaming(self) -> SamplingFields:
        if self.stream_options is not None and not self.stream:
            raise problem_at("stream_options", "only allowed when stream is true")
        return self

    @property
    def token_limit(self) -> int | None:
        """What the client asked for; `max_completion_tokens` wins over the older `max_tokens`."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    @property
    def top_logprobs_wanted(self) -> int | None:
        """Alternatives a token: None means no logprobs, 0 only the chosen token's own."""
        raise NotImplementedError
