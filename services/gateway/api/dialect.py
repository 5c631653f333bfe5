"""What differs between the two endpoints that generate text."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from services.gateway.prompts import Prompt
from services.gateway.stream.chunks import LogprobsJson, Shape
from services.gateway.stream.collected import ChoiceJson
from services.gateway.validation.sampling import SamplingFields
from services.tokenization.tokenizer import Tokenizer

Parse = Callable[[bytes, str], SamplingFields]
"""(body, served model) -> the validated request."""
MakePrompts = Callable[[SamplingFields, Tokenizer, int], Awaitable[list[Prompt]]]
"""(request, tokenizer, longest prompt + answer) -> its prompts."""


@dataclass(frozen=True)
class Dialect:
    """`operation` is gen_ai.operation.name; `endpoint` is the metrics' label."""

    endpoint: str
    operation: str
    id_prefix: str
    object_name: str
    chunk_object_name: str
    parse: Parse
    prompts: MakePrompts
    shape: Shape
    new_logprobs: Callable[[], LogprobsJson]
    choice_json: ChoiceJson
