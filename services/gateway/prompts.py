"""Stage 1: messages or text -> token ids that fit the model, or a 400 that says the numbers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from jinja2 import TemplateError

from services.gateway.errors import ApiError, bad_request
from services.gateway.validation.chat import ChatBody
from services.gateway.validation.completions import CompletionsBody
from services.gateway.validation.messages import Message
from services.gateway.validation.sampling import SamplingFields
from services.tokenization.errors import ChatTemplateError
from services.tokenization.tokenizer import Tokenizer
from services.tokenization.utf8 import LONGEST_TAIL, incomplete_tail

_THREAD_FROM_CHARACTERS = 4_000  # about 2 ms of encoding, during which no stream moves; a thread costs 0.1 ms
_MESSAGE_CHARACTERS = 50  # what a message costs besides its text
_COMPLETIONS_MAX_TOKENS = 16  # OpenAI's default


@dataclass(frozen=True)
class Prompt:
    """A prompt that fits: len(token_ids) + max_tokens <= the model's length.

    `tail` are the prompt's last bytes (0 to 3) that begin a character which the answer may complete.
    """

    token_ids: Sequence[int]
    max_tokens: int
    tail: bytes = b""


async def chat_prompt(body: ChatBody, tokenizer: Tokenizer, max_model_len: int) -> Prompt:
    """Without a limit the answer may use all the room that is left."""
    token_ids = await chat_token_ids(body.messages, tokenizer, max_model_len)
    limit = body.token_limit if body.token_limit is not None else max_model_len - len(token_ids)
    return _fitting(token_ids, limit, body, tokenizer, max_model_len, "messages")


async def chat_token_ids(messages: list[Message], tokenizer: Tokenizer, max_model_len: int) -> list[int]:
    """Apply the model's chat template and encode. Raises a 400 for messages that it refuses or that can't fit."""

    def encode() -> list[int]:
        text = tokenizer.render_chat(messages)
        _check_text(text, tokenizer, max_model_len)
        return tokenizer.encode(text, add_special_tokens=False)

    if len(messages) > max_model_len:
        raise _too_long(f"at least {len(messages)} prompt tokens", max_model_len)
    size = sum(len(message["content"]) + _MESSAGE_CHARACTERS for message in messages)
    try:
        return await _in_thread_if_long(encode, size)
    except ChatTemplateError as error:
        # A template's own complaint is worth reading; what its crash says is not for clients.
        own = error.__cause__ is None or isinstance(error.__cause__, TemplateError)
        reason = str(error) if own else "the model's chat template can't render them; use plain text messages"
        raise bad_request(f"messages: {reason}", "messages") from None


async def text_token_ids(text: str, tokenizer: Tokenizer, max_model_len: int) -> list[int]:
    """Encode a plain prompt. Raises a 400 for one that can't fit."""
    _check_text(text, tokenizer, max_model_len)
    return await _in_thread_if_long(partial(tokenizer.encode, text, add_special_tokens=True), len(text))


async def completion_prompts(body: CompletionsBody, tokenizer: Tokenizer, max_model_len: int) -> list[Prompt]:
    """Encode each prompt; token ids are checked against the vocabulary."""
    limit = body.token_limit if body.token_limit is not None else _COMPLETIONS_MAX_TOKENS
    prompts = []
    for prompt in body.prompt:
        if isinstance(prompt, str):
            text_ids = await text_token_ids(prompt, tokenizer, max_model_len)
            prompts.append(_fitting(text_ids, limit, body, tokenizer, max_model_len, "prompt"))
        else:
            fitting = _fitting(prompt, limit, body, tokenizer, max_model_len, "prompt")
            check_ids("prompt", prompt, tokenizer)
            prompts.append(replace(fitting, tail=prompt_tail(prompt, tokenizer)))
    return prompts


def prompt_tail(token_ids: Sequence[int], tokenizer: Tokenizer) -> bytes:
    """The trailing bytes that begin a UTF-8 character and don't end it."""
    last = b""
    for token_id in reversed(token_ids):
        last = tokenizer.token_bytes(token_id) + last
        if len(last) >= LONGEST_TAIL:
            break
    return incomplete_tail(last)


def _check_text(text: str, tokenizer: Tokenizer, max_model_len: int) -> None:
    """Refuse what can't fit without spending seconds on encoding it: a token holds max_token_bytes at most."""
    if len(text) > max_model_len * tokenizer.max_token_bytes:
        at_least = len(text) // tokenizer.max_token_bytes
        raise _too_long(f"at least {at_least} prompt tokens", max_model_len)


def check_ids(field: str, token_ids: Sequence[int], tokenizer: Tokenizer) -> None:
    """Raise a 400 for ids that the model does not have."""
    if token_ids and max(token_ids) >= tokenizer.vocab_size:
        raise bad_request(f"{field}: token ids must be below {tokenizer.vocab_size}", field)


def _fitting(
    token_ids: Sequence[int],
    max_tokens: int,
    body: SamplingFields,
    tokenizer: Tokenizer,
    max_model_len: int,
    field: str,
) -> Prompt:
    if not token_ids:
        raise bad_request(f"{field}: the prompt has no tokens", field)
    if len(token_ids) + max(max_tokens, 1) > max_model_len:
        raise _too_long(f"{len(token_ids)} prompt tokens and {max(max_tokens, 1)} for the answer", max_model_len)
    if (body.min_tokens or 0) > max_tokens:
        raise bad_request(f"min_tokens: must not be above max_tokens ({max_tokens})", "min_tokens")
    if body.logit_bias:
        check_ids("logit_bias", list(body.logit_bias), tokenizer)
    if body.stop_token_ids:
        check_ids("stop_token_ids", body.stop_token_ids, tokenizer)
    return Prompt(token_ids, max_tokens)


def _too_long(what: str, max_model_len: int) -> ApiError:
    return bad_request(
        f"{what} do not fit in this model's context of {max_model_len} tokens; shorten the prompt or lower max_tokens",
        code="context_length_exceeded",
    )


async def _in_thread_if_long(encode: Callable[[], list[int]], size: int) -> list[int]:
    return await asyncio.to_thread(encode) if size > _THREAD_FROM_CHARACTERS else encode()
