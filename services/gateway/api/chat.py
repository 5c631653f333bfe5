"""POST /v1/chat/completions."""

from __future__ import annotations

from typing import cast

from services.gateway.api.dialect import Dialect
from services.gateway.prompts import Prompt, chat_prompt
from services.gateway.stream.chunks import CHAT_SHAPE
from services.gateway.stream.collected import chat_choice
from services.gateway.stream.logprobs import chat_logprobs_json
from services.gateway.validation.chat import ChatBody
from services.gateway.validation.parse import parse_chat
from services.gateway.validation.sampling import SamplingFields
from services.tokenization.tokenizer import Tokenizer


async def _prompts(body: SamplingFields, tokenizer: Tokenizer, max_model_len: int) -> list[Prompt]:
    return [await chat_prompt(cast(ChatBody, body), tokenizer, max_model_len)]


CHAT = Dialect(
    endpoint="chat_completions",
    operation="chat",
    id_prefix="chatcmpl-",
    object_name="chat.completion",
    chunk_object_name="chat.completion.chunk",
    parse=parse_chat,
    prompts=_prompts,
    shape=CHAT_SHAPE,
    new_logprobs=lambda: chat_logprobs_json,
    choice_json=chat_choice,
)
