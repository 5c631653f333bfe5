"""POST /v1/completions."""

from __future__ import annotations

from typing import cast

from services.gateway.api.dialect import Dialect
from services.gateway.prompts import Prompt, completion_prompts
from services.gateway.stream.chunks import COMPLETION_SHAPE
from services.gateway.stream.collected import completion_choice
from services.gateway.stream.logprobs import CompletionLogprobsJson
from services.gateway.validation.completions import CompletionsBody
from services.gateway.validation.parse import parse_completions
from services.gateway.validation.sampling import SamplingFields
from services.tokenization.tokenizer import Tokenizer


async def _prompts(body: SamplingFields, tokenizer: Tokenizer, max_model_len: int) -> list[Prompt]:
    return await completion_prompts(cast(CompletionsBody, body), tokenizer, max_model_len)


COMPLETIONS = Dialect(
    endpoint="completions",
    operation="text_completion",
    id_prefix="cmpl-",
    object_name="text_completion",
    chunk_object_name="text_completion",
    parse=parse_completions,
    prompts=_prompts,
    shape=COMPLETION_SHAPE,
    new_logprobs=CompletionLogprobsJson,
    choice_json=completion_choice,
)
