"""A stream that is cut off by a fault: what the client got, and how soon it knew."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass

import httpx

from tests.e2e.api import Api, Json, sse_events
from tests.e2e.faults.fleet import STREAM


@dataclass(frozen=True)
class BrokenStream:
    """`closed_s` after the fault the connection was closed."""

    request_id: str
    events: list[Json]
    closed_s: float

    @property
    def tokens(self) -> int:
        """Text deltas of the scripted engine: one a token."""
        return sum(bool(choice["delta"].get("content")) for event in self.events for choice in event.get("choices", ()))

    def check(self) -> Json:
        """That the client can't take it for a whole answer. Returns the error."""
        *chunks, last = self.events
        assert set(last["error"]) == {"message", "type", "param", "code"}
        assert all(choice["finish_reason"] is None for chunk in chunks for choice in chunk["choices"])
        assert self.closed_s < 2.0
        return dict(last["error"])


async def break_stream(api: Api, prompt: str, after_tokens: int, fault: Callable[[], None]) -> BrokenStream:
    """Stream, do `fault` after so many tokens, and read what still comes. Fails when [DONE] does."""
    raw = b""
    broken_at = 0.0
    async with api.open(STREAM, prompt, max_tokens=1000) as response:
        assert response.status_code == 200
        async for piece in response.aiter_raw():
            raw += piece
            if not broken_at and raw.count(b'"content":"x"') >= after_tokens:
                fault()
                broken_at = time.monotonic()
    closed_s = time.monotonic() - broken_at
    assert broken_at, "the stream ended before the fault"
    return BrokenStream(response.headers["x-tokenpath-request-id"], [_json(e) for e in sse_events(raw)], closed_s)


def _json(event: str) -> Json:
    assert event != "[DONE]"
    return dict(json.loads(event))


async def refused(api: Api, prompt: str, limit_s: float = 3.0) -> httpx.Headers:
    """A clear 503 with advice, soon enough."""
    began = time.monotonic()
    answer = await api.ask(STREAM, prompt)
    assert answer.status == 503, answer.raw
    assert answer.error["code"], answer.raw
    assert time.monotonic() - began < limit_s
    assert int(answer.headers["retry-after"]) >= 1
    return answer.headers
