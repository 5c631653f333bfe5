"""Log probabilities in the shapes of the two endpoints."""

from __future__ import annotations

import math
from typing import Any

import orjson

from tokenpath.v1.detokenizer_pb2 import Delta, TokenLogprob

_MOST_NEGATIVE = -9999.0  # what OpenAI writes for a token that could not have been chosen; JSON has no -Infinity


def _number(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else _MOST_NEGATIVE


def _text(token: TokenLogprob) -> str:
    return token.token.decode("utf-8", "replace")


def _chat_token(token: TokenLogprob) -> dict[str, Any]:
    return {"token": _text(token), "logprob": _number(token.logprob), "bytes": list(token.token)}


def chat_logprobs(delta: Delta) -> list[dict[str, Any]]:
    """The entries of `logprobs.content` for the tokens of a delta."""
    return [
        {**_chat_token(token), "top_logprobs": [_chat_token(other) for other in token.top]} for token in delta.logprobs
    ]


class CompletionLogprobs:
    """`logprobs` of one completions choice; `text_offset` counts characters of the answer."""

    def __init__(self) -> None:
        self._offset = 0

    def take(self, delta: Delta) -> dict[str, list[Any]]:
        """The four lists for the tokens of a delta."""
        lists: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for token in delta.logprobs:
            text = _text(token)
            lists["tokens"].append(text)
            lists["token_logprobs"].append(_number(token.logprob))
            lists["top_logprobs"].append({_text(other): _number(other.logprob) for other in token.top})
            lists["text_offset"].append(self._offset)
            self._offset += len(text)
        return lists


def chat_logprobs_json(index: int, delta: Delta) -> bytes:
    """`logprobs` of a chat chunk."""
    return orjson.dumps({"content": chat_logprobs(delta), "refusal": None})


class CompletionLogprobsJson:
    """`logprobs` of completions chunks, for all choices of an answer."""

    def __init__(self) -> None:
        self._choices: dict[int, CompletionLogprobs] = {}

    def __call__(self, index: int, delta: Delta) -> bytes:
        return orjson.dumps(self._choices.setdefault(index, CompletionLogprobs()).take(delta))
