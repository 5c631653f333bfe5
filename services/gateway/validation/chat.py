"""POST /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field, model_validator

from services.gateway.validation.fields import problem_at
from services.gateway.validation.messages import Message, parse_messages
from services.gateway.validation.sampling import SamplingFields


class ChatBody(SamplingFields):
    """A validated request. Message contents are plain strings."""

    messages: Annotated[list[Message], BeforeValidator(parse_messages)]
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    @model_validator(mode="after")
    def _alternatives_only_with_logprobs(self) -> ChatBody:
        if self.top_logprobs and not self.logprobs:
            raise problem_at("top_logprobs", "only allowed when logprobs is true")
        return self

    @property
    def top_logprobs_wanted(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None
