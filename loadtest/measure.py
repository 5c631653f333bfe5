"""From what arrived, and when, to TTFT, ITL, TPOT and E2E. Pure: no clock, no socket.

Definitions (docs/metrics.md says which tools share them):

* TTFT  request bytes sent -> first SSE data whose delta has text; a chunk with only a role doesn't count
* E2E   request bytes sent -> last SSE data that has text
* ITL   the gaps between arrivals that have text, as a list
* TPOT  (E2E - TTFT) / (n_out - 1); undetermined (None) when n_out < 2

A stream that ends without a finish_reason and [DONE], or that carries an error event, is a failure
although its status is 200.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

NS_PER_S = 1_000_000_000


@dataclass(frozen=True)
class Arrival:
    """One SSE event: its data, and when the client had read the last byte of it (monotonic ns)."""

    at_ns: int
    data: str


@dataclass(frozen=True)
class Exchange:
    """One HTTP exchange as the client saw it; times are monotonic ns of one clock."""

    sent_ns: int
    headers_ns: int = 0  # 0: no response headers came
    status: int = 0
    content_type: str = ""
    arrivals: tuple[Arrival, ...] = ()
    error_code: str = ""  # of a refused request's JSON body
    transport_error: str = ""  # the connection broke, or the body was cut


@dataclass(frozen=True)
class Measurement:
    """One request's result; durations in seconds, None where there is nothing to measure."""

    failure: str  # empty: success
    status: int
    headers_s: float | None
    ttft_s: float | None = None
    e2e_s: float | None = None
    tpot_s: float | None = None
    itl_s: tuple[float, ...] = ()
    output_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0

    @property
    def ok(self) -> bool:
        return not self.failure


@dataclass
class _Stream:
    """What the events of one answer said."""

    text_at_ns: list[int] = field(default_factory=list)
    finished: bool = False
    done: bool = False
    error: str = ""
    usage: Mapping[str, Any] = field(default_factory=dict)


def measure(exchange: Exchange) -> Measurement:
    """The result of one streamed request."""
    headers_s = _seconds(exchange.sent_ns, exchange.headers_ns) if exchange.headers_ns else None
    refusal = _refusal(exchange)
    if refusal:
        return Measurement(failure=refusal, status=exchange.status, headers_s=headers_s)
    stream = _read(exchange.arrivals)
    times = stream.text_at_ns
    tokens = int(stream.usage.get("completion_tokens") or len(times))
    ttft_s = _seconds(exchange.sent_ns, times[0]) if times else None
    e2e_s = _seconds(exchange.sent_ns, times[-1]) if times else None
    return Measurement(
        failure=_stream_failure(exchange, stream),
        status=exchange.status,
        headers_s=headers_s,
        ttft_s=ttft_s,
        e2e_s=e2e_s,
        tpot_s=_seconds(times[0], times[-1]) / (tokens - 1) if times and tokens > 1 else None,
        itl_s=tuple(_seconds(a, b) for a, b in pairwise(times)),
        output_tokens=tokens,
        prompt_tokens=int(stream.usage.get("prompt_tokens") or 0),
        cached_tokens=int((stream.usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0),
    )


def _refusal(exchange: Exchange) -> str:
    """Why there is no stream to read; empty when there is one."""
    if not exchange.headers_ns:
        return f"no answer: {exchange.transport_error}"
    if exchange.status != 200:
        return f"HTTP {exchange.status} {exchange.error_code}".rstrip()
    if not exchange.content_type.startswith("text/event-stream"):
        return f"not an event stream: {exchange.content_type or 'no content type'}"
    return ""


def _read(arrivals: tuple[Arrival, ...]) -> _Stream:
    stream = _Stream()
    for arrival in arrivals:
        if arrival.data == "[DONE]":
            stream.done = True
            continue
        try:
            body = json.loads(arrival.data)
        except ValueError:
            stream.error = stream.error or "data is not JSON"
            continue
        if body.get("error"):
            stream.error = f"error event {body['error'].get('code') or body['error'].get('type') or ''}".rstrip()
        stream.usage = body.get("usage") or stream.usage
        for choice in body.get("choices") or ():
            stream.finished = stream.finished or bool(choice.get("finish_reason"))
            if _has_text(choice):
                stream.text_at_ns.append(arrival.at_ns)
    return stream


def _has_text(choice: Mapping[str, Any]) -> bool:
    delta = choice.get("delta") or {}
    return bool(choice.get("text") or delta.get("content") or delta.get("reasoning_content") or delta.get("tool_calls"))


def _stream_failure(exchange: Exchange, stream: _Stream) -> str:
    if stream.error:
        return stream.error
    if exchange.transport_error:
        return f"stream cut: {exchange.transport_error}"
    if not stream.finished:
        return "stream cut: no finish_reason"
    if not stream.done:
        return "stream cut: no [DONE]"
    return ""


def _seconds(start_ns: int, end_ns: int) -> float:
    return (end_ns - start_ns) / NS_PER_S
