"""The hand-off descriptor: what a prefill worker tells the decode worker that goes on.

It travels as JSON in `kv_transfer_params_json`, through gateways that do not look inside.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import fields as fields_of
from typing import Any

import grpc

from services.engine.runner import Sampled
from services.platform.failures import Failure

TRANSPORT = "redis"


@dataclass(frozen=True, slots=True)
class FirstToken:
    """The token that the prefill worker sampled for one choice."""

    index: int
    sampled: Sampled
    finish: str
    """Why the choice ends with it, or ""."""

    @property
    def most_token_id(self) -> int:
        """The largest id among it and its alternatives."""
        return max(self.sampled.token_id, *(token_id for token_id, _ in self.sampled.top), 0)


@dataclass(frozen=True, slots=True)
class Handoff:
    fingerprint: str
    """Of the KV: only a worker with the same can go on."""
    generation: str
    """The life of the prefill worker."""
    prompt_tokens: int
    pages: int
    """Pages of the prompt in the store, the partly filled last one included; 0: none, recompute."""
    cached_tokens: int
    first: tuple[FirstToken, ...]
    request_id: str
    attempt: int
    expires_unix_ms: int
    """Until then the pages are in the store, unless it had to evict them."""

    def to_json(self) -> str:
        # Not asdict(): it copies every value deeply, at ten times the cost of the rest.
        fields = {field.name: getattr(self, field.name) for field in fields_of(self)}
        fields["transport"] = TRANSPORT
        fields["first"] = [
            {
                "index": first.index,
                "token_id": first.sampled.token_id,
                "logprob": first.sampled.logprob,
                "top": [list(pair) for pair in first.sampled.top],
                "finish": first.finish,
            }
            for first in self.first
        ]
        return json.dumps(fields, separators=(",", ":"))

    @staticmethod
    def parse(fields: Mapping[str, Any]) -> Handoff:
        """Raises Failure (INVALID_ARGUMENT) that names what is wrong."""
        if fields.get("transport") != TRANSPORT:
            raise refused(f"its transport is {fields.get('transport')!r}, this worker reads pages from {TRANSPORT!r}")
        try:
            handoff = Handoff(
                fingerprint=_text(fields, "fingerprint"),
                generation=_text(fields, "generation"),
                prompt_tokens=_count(fields, "prompt_tokens"),
                pages=_count(fields, "pages"),
                cached_tokens=_count(fields, "cached_tokens"),
                first=tuple(_first(entry) for entry in fields["first"]),
                request_id=_text(fields, "request_id"),
                attempt=_count(fields, "attempt"),
                expires_unix_ms=_count(fields, "expires_unix_ms"),
            )
        except KeyError as error:
            raise refused(f"{error} is missing") from None
        except (TypeError, ValueError, OverflowError, AttributeError) as error:
            raise refused(str(error)) from None
        if handoff.cached_tokens > handoff.prompt_tokens:
            raise refused("more tokens were cached than the prompt has")
        return handoff


def refused(what: str) -> Failure:
    """A descriptor that can't be used, whoever made it."""
    return Failure(
        grpc.StatusCode.INVALID_ARGUMENT, f"bad hand-off descriptor: {what}", param="kv_transfer_params_json"
    )


def _first(entry: Mapping[str, Any]) -> FirstToken:
    logprob = entry.get("logprob")
    if logprob is not None and not isinstance(logprob, int | float):
        raise ValueError("logprob is no number")
    top = tuple((int(token_id), float(value)) for token_id, value in entry.get("top", ()))
    if any(token_id < 0 for token_id, _ in top):
        raise ValueError("top has a token below 0")
    sampled = Sampled(_count(entry, "token_id"), None if logprob is None else float(logprob), top)
    finish = _text(entry, "finish")
    if finish not in ("", "stop", "length"):
        raise ValueError("finish is neither stop nor length")
    return FirstToken(_count(entry, "index"), sampled, finish)


def _text(fields: Mapping[str, Any], key: str) -> str:
    value = fields[key]
    if not isinstance(value, str):
        raise ValueError(f"{key} is no text")
    return value


def _count(fields: Mapping[str, Any], key: str) -> int:
    value = fields[key]
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{key} is no whole number of 0 or more")
    return value
