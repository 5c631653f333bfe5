"""Talking to the gateway of the running stack."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from services.local import records
from services.local.errors import RefusedError, StackError
from services.local.folder import StackFolder
from services.local.hints import tokenpath
from services.local.records import StackRecord

CONNECT_S = 5.0
READ_S = 120.0  # between two bytes: a first token may wait for a long prompt


@dataclass(frozen=True)
class Question:
    """What `tokenpath ask` may set. None leaves the gateway's default."""

    text: str
    system: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    mode: str | None = None

    def body(self, model: str) -> dict[str, Any]:
        system = [{"role": "system", "content": self.system}] if self.system else []
        body: dict[str, Any] = {"model": model, "messages": [*system, {"role": "user", "content": self.text}]}
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        chosen = {"max_tokens": self.max_tokens, "temperature": self.temperature}
        return body | {key: value for key, value in chosen.items() if value is not None}


@dataclass(frozen=True)
class Answer:
    """An answer whose text is still arriving: iterate `events` (decoded SSE data objects, in order).

    `sent` is when its request was sent, on the monotonic clock in seconds.
    """

    request_id: str
    trace_id: str
    sent: float
    events: Iterator[dict[str, Any]]

    def texts(self) -> Iterator[str]:
        """The pieces of text, as they arrive. Raises StackError when the stream ends with an error."""
        for event in self.events:
            if error := event.get("error"):
                raise StackError(f"the answer broke off: {error.get('message', error)} (request {self.request_id})")
            for choice in event.get("choices", ()):
                if text := choice["delta"].get("content"):
                    yield text


class GatewayClient:
    """One HTTP connection to a gateway. Raises StackError, with what the gateway said, for every failure."""

    def __init__(self, url: str, api_key: str) -> None:
        self.url = url
        # Proxies of the environment have no business on loopback.
        self._http = httpx.Client(
            base_url=url,
            headers={"authorization": f"Bearer {api_key}"},
            timeout=httpx.Timeout(READ_S, connect=CONNECT_S),
            trust_env=False,
        )

    def __enter__(self) -> GatewayClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def get(self, path: str) -> Any:
        """The JSON at a path."""
        with self._explained():
            response = self._http.get(path)
            return _checked(response).json()

    def model(self) -> str:
        """The name of the model that the gateway serves."""
        return str(self.get("/v1/models")["data"][0]["id"])

    @contextmanager
    def ask(self, question: Question) -> Iterator[Answer]:
        """Ask; the block reads the answer as it arrives. Leaving the block early cancels the request."""
        headers = {"x-tokenpath-mode": question.mode} if question.mode else {}
        body = question.body(self.model())
        sent = time.monotonic()
        with (
            self._explained(),
            self._http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as response,
        ):
            if response.status_code != 200:
                response.read()
            _checked(response)
            identity = response.headers
            request_id = identity.get("x-tokenpath-request-id") or identity.get("x-request-id", "")
            yield Answer(request_id, identity.get("x-trace-id", ""), sent, _events(response.iter_lines()))

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except httpx.HTTPError as error:
            raise StackError(
                f"the gateway at {self.url} does not answer ({type(error).__name__}); see `{tokenpath('status')}`"
            ) from error


def client_of(folder: StackFolder) -> GatewayClient:
    """A client for the stack of this folder. Raises StackError when none runs."""
    record = running(folder)
    return GatewayClient(record.urls["gateway"], record.api_key)


def running(folder: StackFolder) -> StackRecord:
    """The record of this folder's stack. Raises StackError when none runs or it is half-started."""
    record = records.load(folder.record)
    if record is None:
        raise StackError("no stack runs in this folder; start one with `make up`")
    if not record.ready or not any(process.alive for process in record.processes):
        raise StackError(
            f"this folder's stack is not whole; `make up` starts it again, `{tokenpath('status')}` shows what is left"
        )
    return record


def _events(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        if line.startswith("data: ") and line != "data: [DONE]":
            yield json.loads(line.removeprefix("data: "))


def _checked(response: httpx.Response) -> httpx.Response:
    if response.status_code == 200:
        return response
    try:
        message = response.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = response.text[:200]
    raise RefusedError(response.status_code, message)
