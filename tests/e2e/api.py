"""A client of the HTTP API for tests: both endpoints, streamed and not, with one kind of answer."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.stack import RunningStack

Json = dict[str, Any]
ENDPOINTS = ("chat", "completions")
PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}


def script(**fields: Any) -> str:
    """A prompt that tells the scripted engine what to say."""
    return "SCRIPT:" + json.dumps(fields, separators=(",", ":"))


@dataclass(frozen=True)
class Mode:
    """One of the four ways to ask."""

    endpoint: str
    stream: bool

    def __str__(self) -> str:
        return f"{self.endpoint}-{'stream' if self.stream else 'whole'}"


MODES = [Mode(endpoint, stream) for endpoint in ENDPOINTS for stream in (False, True)]


@dataclass
class Answer:
    """What came back. `deltas`, `texts` and `finish` are by choice index; a whole answer is one delta a choice."""

    status: int
    headers: httpx.Headers
    raw: bytes
    chunks: list[Json] = field(default_factory=list)  # the whole document, or a stream's chunks without [DONE]
    deltas: dict[int, list[str]] = field(default_factory=dict)
    finish: dict[int, list[str]] = field(default_factory=dict)
    usage: Json | None = None

    @property
    def texts(self) -> list[str]:
        return ["".join(self.deltas[index]) for index in sorted(self.deltas)]

    @property
    def text(self) -> str:
        """Of an answer with one choice."""
        assert list(self.deltas) == [0], f"choices {sorted(self.deltas)} in {self.raw[:300]!r}"
        return self.texts[0]

    @property
    def finish_reason(self) -> str:
        """Of an answer with one choice, which must have ended exactly once."""
        assert list(self.finish) == [0], f"ended choices {self.finish} in {self.raw[-300:]!r}"
        (reason,) = self.finish[0]
        return reason

    @property
    def error(self) -> Json:
        """The error object of a refused request, with its shape checked."""
        assert self.headers["content-type"] == "application/json", self.raw[:300]
        body = json.loads(self.raw)
        assert list(body) == ["error"], body
        assert set(body["error"]) == {"message", "type", "param", "code"}, body
        assert body["error"]["message"], body
        return dict(body["error"])

    @property
    def request_id(self) -> str:
        return self.headers["x-tokenpath-request-id"]


class Api:
    """Bound to one stack and one API key."""

    def __init__(self, stack: RunningStack, client: httpx.AsyncClient, model: str) -> None:
        self.stack = stack
        self.http = client
        self.model = model

    def body(self, mode: Mode, prompt: Any, **fields: Any) -> Json:
        """The request's body; a list of messages or a prompt that is no text is taken as it is."""
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        said = {"messages": messages} if mode.endpoint == "chat" else {"prompt": prompt}
        streaming = {"stream": True, "stream_options": {"include_usage": True}} if mode.stream else {}
        return {"model": self.model, **said, **streaming, **fields}

    async def ask(self, mode: Mode, prompt: Any, headers: Mapping[str, str] | None = None, **fields: Any) -> Answer:
        """Send a request and read its whole answer, good or bad."""
        return await self.send(mode.endpoint, json.dumps(self.body(mode, prompt, **fields)).encode(), headers)

    async def send(self, endpoint: str, body: bytes, headers: Mapping[str, str] | None = None) -> Answer:
        """POST exactly these bytes."""
        sent = {"content-type": "application/json", **(headers or {})}
        response = await self.http.post(PATHS[endpoint], content=body, headers=sent)
        return read_answer(response)

    @asynccontextmanager
    async def open(
        self, mode: Mode, prompt: Any, headers: Mapping[str, str] | None = None, **fields: Any
    ) -> AsyncIterator[httpx.Response]:
        """A stream that the caller reads, or leaves."""
        body = self.body(mode, prompt, **fields)
        async with self.http.stream("POST", PATHS[mode.endpoint], json=body, headers=dict(headers or {})) as response:
            yield response

    async def journey(self, request_id: str) -> Json:
        response = await self.http.get(f"/v1/journeys/{request_id}")
        assert response.status_code == 200, response.text
        return dict(response.json())


def read_answer(response: httpx.Response) -> Answer:
    answer = Answer(response.status_code, response.headers, response.content)
    if response.status_code != 200:
        return answer
    if response.headers["content-type"].startswith("text/event-stream"):
        answer.chunks = sse_chunks(response.content)
    else:
        answer.chunks = [response.json()]
    for chunk in answer.chunks:
        if "error" in chunk:
            continue
        for choice in chunk["choices"]:
            said = choice.get("delta") or choice.get("message") or choice
            text = said.get("content", said.get("text"))
            answer.deltas.setdefault(choice["index"], []).append(text or "")
            if choice["finish_reason"] is not None:
                answer.finish.setdefault(choice["index"], []).append(choice["finish_reason"])
        answer.usage = chunk.get("usage") or answer.usage
    return answer


def sse_events(raw: bytes) -> list[str]:
    """The payloads of an SSE body, whose framing is checked byte by byte."""
    text = raw.decode()  # raises on anything that is not UTF-8
    assert "\r" not in text
    assert text.endswith("\n\n")
    events = text.removesuffix("\n\n").split("\n\n")
    for event in events:
        assert event.startswith("data: "), event
        assert not event.startswith("data:  "), event
        assert "\n" not in event, event
    return [event.removeprefix("data: ") for event in events]


def sse_chunks(raw: bytes) -> list[Json]:
    """The chunks of an SSE body; [DONE] must be its last event, unless that is an error."""
    events = sse_events(raw)
    if "error" in json.loads(events[-1] if events[-1] != "[DONE]" else "{}"):
        assert "[DONE]" not in events
        return [json.loads(event) for event in events]
    assert events.count("[DONE]") == 1
    assert events[-1] == "[DONE]"
    return [json.loads(event) for event in events[:-1]]
