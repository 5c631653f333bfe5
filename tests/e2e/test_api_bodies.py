"""Bodies, prompts and names that are wrong in one way or another: an honest 4xx, and the stack goes on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.e2e.api import ENDPOINTS, MODES, Api, Mode, read_answer, script
from tests.e2e.ledger import ledger_length

HELLO = script(pieces=["x", " DE"])
WHOLE = {endpoint: Mode(endpoint, False) for endpoint in ENDPOINTS}


@pytest.fixture(autouse=True)
async def _serves_afterwards(api: Api) -> AsyncIterator[None]:
    """Every case also implies that the next plain request is answered."""
    yield
    assert (await api.ask(WHOLE["chat"], HELLO)).text == "x DE"


class TestB015:
    """B015: an empty prompt is a 400 that names it, wherever it is empty; an empty chat text is a prompt."""

    @pytest.mark.parametrize("stream", [False, True])
    async def test_completions(self, api: Api, stream: bool) -> None:
        for prompt in ("", [""], [], [[]], ["a", ""], [[1], []], None, 5, [1, "a"]):
            body = {"model": api.model, "prompt": prompt, "stream": stream}
            answer = await api.send("completions", json.dumps(body).encode())
            assert (answer.status, answer.error["param"]) == (400, "prompt"), prompt

    @pytest.mark.parametrize("stream", [False, True])
    async def test_chat(self, api: Api, stream: bool) -> None:
        mode = Mode("chat", stream)
        assert (await api.ask(mode, [])).error["param"] == "messages"
        for messages in ([{"role": "user", "content": ""}], [{"role": "system", "content": "Be brief."}]):
            answer = await api.ask(mode, messages, max_tokens=3)
            assert answer.finish_reason == "length"


@pytest.mark.parametrize("endpoint", ENDPOINTS)
class TestB017:
    """B017: what is no JSON object is a 400 in OpenAI's shape, a wrong type a 415; never a 500."""

    async def test_bodies(self, api: Api, endpoint: str) -> None:
        nested = b"[" * 10_000 + b"]" * 10_000
        for body in (b"{", b"[]", b"null", b'"x"', b"", b"\xef\xbb\xbf{}", nested, b'{"a":' * 5000, b"\x00"):
            answer = await api.send(endpoint, body)
            assert answer.status == 400, body[:20]
            assert answer.error["type"] == "invalid_request_error", body[:20]

    async def test_content_types(self, api: Api, endpoint: str) -> None:
        body = json.dumps(api.body(WHOLE[endpoint], HELLO)).encode()
        for content_type in (None, "text/plain", "application/x-www-form-urlencoded", "json"):
            status, head, rest = await raw_post(api, endpoint, body, content_type)
            assert status == 415, content_type
            assert json.loads(rest)["error"]["type"] == "invalid_request_error"
            assert b"application/json" in head

    async def test_charset_is_fine(self, api: Api, endpoint: str) -> None:
        body = json.dumps(api.body(WHOLE[endpoint], HELLO)).encode()
        status, _, _ = await raw_post(api, endpoint, body, "application/json; charset=utf-8")
        assert status == 200

    async def test_a_chunked_body_cut_short(self, api: Api, endpoint: str) -> None:
        """The connection ends inside the body: nothing is answered, nothing is charged, nothing breaks."""
        before = await ledger_length(api.stack)
        for ending in (b'5\r\n{"mod', b'5\r\n{"mod\r\n', b"zz\r\n"):
            reader, writer = await connect(api)
            writer.write(head_of(api, endpoint, "application/json") + b"Transfer-Encoding: chunked\r\n\r\n" + ending)
            await writer.drain()
            writer.write_eof()
            async with asyncio.timeout(3):
                answer = await reader.read()
            assert answer == b"" or answer.startswith(b"HTTP/1.1 400"), answer[:100]
            writer.close()
        assert await ledger_length(api.stack) == before


async def connect(api: Api) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    url = httpx.URL(api.stack.gateway_url)
    return await asyncio.open_connection(url.host, url.port)


def head_of(api: Api, endpoint: str, content_type: str | None) -> bytes:
    """A request's head without its end."""
    path = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}[endpoint]
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {api.stack.api_key}"]
    lines += [f"Content-Type: {content_type}"] if content_type is not None else []
    return "\r\n".join(lines).encode() + b"\r\n"


async def raw_post(api: Api, endpoint: str, body: bytes, content_type: str | None) -> tuple[int, bytes, bytes]:
    """(status, head, body) over a socket of our own: an HTTP client would mend the request."""
    reader, writer = await connect(api)
    length = f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
    writer.write(head_of(api, endpoint, content_type) + length + body)
    async with asyncio.timeout(5):
        head, _, rest = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return int(head.split(b" ")[1]), head, rest


@pytest.mark.parametrize("mode", MODES, ids=str)
async def test_b019_other_models(api: Api, mode: Mode) -> None:
    """B019: only the served model's exact name is served; others are not billed and become no metric label."""
    before = await ledger_length(api.stack)
    for name in ("nope", "", api.model.lower(), "x" * 100_000):
        answer = await api.ask(mode, HELLO, model=name)
        assert (answer.status, answer.error["code"]) == (404, "model_not_found"), name[:20]
        assert len(answer.raw) < 1000
    for name in (None, 5):
        answer = await api.ask(mode, HELLO, model=name)
        assert (answer.status, answer.error["param"]) == (400, "model")
    assert await ledger_length(api.stack) == before
    metrics = (await api.http.get("/metrics")).text
    assert "nope" not in metrics
    assert api.model.lower() not in metrics


async def test_b019_the_list_of_models(api: Api) -> None:
    missing = read_answer(await api.http.get("/v1/models/nope"))
    assert (missing.status, missing.error["code"]) == (404, "model_not_found")
    assert (await api.http.get(f"/v1/models/{api.model}")).json()["id"] == api.model


@pytest.mark.parametrize("mode", MODES, ids=str)
class TestB020:
    """B020: a valid surrogate pair is a character; a lone surrogate and bad UTF-8 are 400, in both modes."""

    def raw(self, api: Api, mode: Mode, text: bytes, field: str = "content") -> bytes:
        fields = {"stop": "@@"} if field == "stop" else {}
        prompt = HELLO if field == "stop" else HELLO + "@@"
        return json.dumps(api.body(mode, prompt, **fields)).encode().replace(b"@@", text)

    async def test_a_pair(self, api: Api, mode: Mode) -> None:
        answer = await api.send(mode.endpoint, self.raw(api, mode, rb"\ud83d\ude00"))
        assert answer.text == "x DE"

    @pytest.mark.parametrize("field", ["content", "stop"])
    async def test_what_is_no_text(self, api: Api, mode: Mode, field: str) -> None:
        for text in (rb"\ud800", rb"\ude00x", b"\xff", b"\xed\xa0\x80"):
            answer = await api.send(mode.endpoint, self.raw(api, mode, text, field))
            assert answer.status == 400, text
            assert "Error" not in answer.error["message"]

    async def test_a_nul_is_text(self, api: Api, mode: Mode) -> None:
        assert (await api.send(mode.endpoint, self.raw(api, mode, rb"\u0000"))).text == "x DE"


TOOL_CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
IMAGE = {"type": "image_url", "image_url": {"url": "x"}}
SAME_AS_HELLO: dict[str, list[dict[str, Any]]] = {
    "parts": [{"role": "user", "content": [{"type": "text", "text": HELLO}]}],
    "several parts": [{"role": "user", "content": [{"type": "text", "text": part} for part in (HELLO[:7], HELLO[7:])]}],
    "empty tool calls": [{"role": "user", "content": HELLO, "tool_calls": []}],
    "null fields": [{"role": "user", "content": HELLO, "name": None, "audio": None}],
}
SERVED: dict[str, list[dict[str, Any]]] = {
    "two system messages": [{"role": "system", "content": "a"}, {"role": "system", "content": HELLO}],
    "developer": [{"role": "developer", "content": "a"}, {"role": "user", "content": HELLO}],
    "tool call and its answer": [
        {"role": "user", "content": HELLO},
        {"role": "assistant", "content": None, "tool_calls": [TOOL_CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "4"},
    ],
    "empty parts": [{"role": "user", "content": HELLO}, {"role": "user", "content": []}],
}
REFUSED: dict[str, tuple[list[Any], str]] = {
    "unknown role": ([{"role": "wizard", "content": "a"}], "messages[0].role"),
    "no role": ([{"content": "a"}], "messages[0].role"),
    "image": (
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
        "messages[0].content[0]",
    ),
    "null content": ([{"role": "user", "content": "a"}, {"role": "user", "content": None}], "messages[1].content"),
    "number": ([{"role": "user", "content": 5}], "messages[0].content"),
    "no object": (["hi"], "messages[0]"),
    "bad call": ([{"role": "assistant", "content": None, "tool_calls": [{}]}], "messages[0].tool_calls[0]"),
}


@pytest.mark.parametrize("stream", [False, True])
class TestB021:
    """B021: supported forms of a message give the same prompt as the plain text; others are 400 with a path."""

    async def test_the_same_prompt(self, api: Api, stream: bool) -> None:
        plain = (await api.ask(Mode("chat", stream), HELLO)).usage
        assert plain is not None
        for form, messages in SAME_AS_HELLO.items():
            answer = await api.ask(Mode("chat", stream), messages)
            assert answer.text == "x DE", form
            assert answer.usage is not None
            assert answer.usage["prompt_tokens"] == plain["prompt_tokens"], form

    async def test_served(self, api: Api, stream: bool) -> None:
        for form, messages in SERVED.items():
            assert (await api.ask(Mode("chat", stream), messages)).text == "x DE", form

    async def test_refused(self, api: Api, stream: bool) -> None:
        for form, (messages, path) in REFUSED.items():
            answer = await api.ask(Mode("chat", stream), messages)
            assert answer.status == 400, form
            assert str(answer.error["param"]).startswith(path), form
