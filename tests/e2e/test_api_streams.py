"""The bytes of a stream, and that both endpoints say the same streamed and whole."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.e2e.api import MODES, Api, Mode, script, sse_chunks, sse_events

STREAMS = [mode for mode in MODES if mode.stream]
PIECES = ["x", " DE", "F"]


@pytest.mark.parametrize("mode", STREAMS, ids=str)
class TestStream:
    async def test_b002_framing_and_the_end(self, api: Api, mode: Mode) -> None:
        """B002: events of one `data:` line, exactly one [DONE], finish_reason null until the last choice chunk."""
        answer = await api.ask(mode, script(pieces=PIECES), stream_options=None)
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-cache"
        assert answer.headers["x-accel-buffering"] == "no"
        reasons = [chunk["choices"][0]["finish_reason"] for chunk in answer.chunks]
        assert reasons == [None] * (len(reasons) - 1) + ["stop"]
        assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in answer.chunks}) == 1
        kind = "chat.completion.chunk" if mode.endpoint == "chat" else "text_completion"
        assert {chunk["object"] for chunk in answer.chunks} == {kind}
        assert answer.text == "".join(PIECES)

    async def test_b002_length_is_a_reason_too(self, api: Api, mode: Mode) -> None:
        answer = await api.ask(mode, script(pieces=PIECES), max_tokens=2)
        assert (answer.text, answer.finish_reason) == ("x DE", "length")

    async def test_b001_usage_is_one_last_chunk_when_asked_for(self, api: Api, mode: Mode) -> None:
        answer = await api.ask(mode, script(pieces=PIECES), stream_options={"include_usage": True})
        assert answer.chunks[-1]["choices"] == []
        assert answer.chunks[-1]["usage"]["completion_tokens"] == 4  # three pieces and the end-of-sequence token
        assert all(chunk["usage"] is None and chunk["choices"] for chunk in answer.chunks[:-1])

    @pytest.mark.parametrize("options", [{}, None, {"include_usage": False}])
    async def test_b001_no_usage_when_not_asked_for(self, api: Api, mode: Mode, options: object) -> None:
        answer = await api.ask(mode, script(pieces=PIECES), stream_options=options)
        assert answer.usage is None
        assert all(chunk["choices"] for chunk in answer.chunks)
        assert b'"usage"' not in answer.raw

    async def test_running_usage_on_every_chunk(self, api: Api, mode: Mode) -> None:
        options = {"include_usage": True, "continuous_usage_stats": True}
        answer = await api.ask(mode, script(pieces=PIECES), stream_options=options)
        counts = [chunk["usage"]["completion_tokens"] for chunk in answer.chunks]
        assert counts == sorted(counts)
        assert counts[0] == 1
        assert counts[-2:] == [4, 4]

    async def test_the_role_comes_with_the_first_text(self, api: Api, mode: Mode) -> None:
        """A role sent ahead of the text would make a client measure the queue as its time to first token."""
        answer = await api.ask(mode, script(pieces=PIECES))
        first = answer.chunks[0]["choices"][0]
        if mode.endpoint == "chat":
            assert first["delta"] == {"role": "assistant", "content": "x"}
            assert all("role" not in chunk["choices"][0]["delta"] for chunk in answer.chunks[1:-1])
        else:
            assert first["text"] == "x"

    async def test_an_answer_without_text_has_a_chunk(self, api: Api, mode: Mode) -> None:
        answer = await api.ask(mode, script(pieces=[]))
        assert (answer.text, answer.finish_reason) == ("", "stop")
        assert answer.usage is not None
        assert answer.usage["completion_tokens"] == 1

    async def test_tokens_leave_one_by_one(self, api: Api, mode: Mode) -> None:
        """The first event is there long before the last token is due."""
        loop = asyncio.get_running_loop()
        async with api.open(mode, script(pieces=PIECES, repeat=4, itl_ms=50)) as response:
            pieces = [(loop.time(), piece) async for piece in response.aiter_raw()]
        assert pieces[-1][0] - pieces[0][0] > 0.4
        assert len(pieces) >= 10
        chunks = sse_chunks(b"".join(piece for _, piece in pieces))
        assert len(chunks) == 12 + 2  # tokens, the end, the usage

    async def test_a_failure_after_the_first_token_is_an_error_event(self, api: Api, mode: Mode) -> None:
        """Kind of B006: an event that parsers see, then the end; never a stop that did not happen."""
        answer = await api.ask(mode, script(pieces=PIECES, repeat=10, fail_after=4))
        assert answer.status == 200
        assert answer.chunks[-1]["error"]["type"] == "server_error"
        assert "choices" not in answer.chunks[-1]
        assert answer.finish == {}
        assert answer.text == "x DEFx"


@pytest.mark.parametrize("mode", [mode for mode in MODES if not mode.stream], ids=str)
async def test_b001_stream_options_without_a_stream_are_refused(api: Api, mode: Mode) -> None:
    answer = await api.ask(mode, script(pieces=PIECES), stream_options={"include_usage": True})
    assert (answer.status, answer.error["param"]) == (400, "stream_options")


@pytest.mark.parametrize("mode", MODES, ids=str)
async def test_a_failure_before_the_first_token_keeps_its_status(api: Api, mode: Mode) -> None:
    """Whatever can be known before the first byte is the answer's status, streamed or not."""
    answer = await api.ask(mode, "SCRIPT:{not json}")
    assert answer.status == 400
    assert "SCRIPT" in answer.error["message"]
    answer = await api.ask(mode, script(pieces=PIECES, fail_after=0))
    assert answer.status == 500
    assert answer.error["type"] == "server_error"


@pytest.mark.parametrize("mode", MODES, ids=str)
async def test_headers_out(api: Api, mode: Mode) -> None:
    answer = await api.ask(mode, script(pieces=PIECES), headers={"x-request-id": "mine-1"})
    assert answer.headers["x-request-id"] == "mine-1"
    assert answer.request_id.startswith("req_")
    assert answer.chunks[0]["id"].endswith(answer.request_id)
    assert len(bytes.fromhex(answer.headers["x-trace-id"])) == 16
    assert int(answer.headers["openai-processing-ms"]) >= 0
    assert answer.headers["x-inference-pod"] in ("decode-0", "decode-1")


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
async def test_streamed_and_whole_are_the_same_answer(api: Api, endpoint: str) -> None:
    prompt = script(text="The quick brown fox; 여우 🦊 jumps.\n\n  twice", finish="length")
    streamed = await api.ask(Mode(endpoint, True), prompt, max_tokens=64)
    whole = await api.ask(Mode(endpoint, False), prompt, max_tokens=64)
    assert streamed.text == whole.text == "The quick brown fox; 여우 🦊 jumps.\n\n  twice"
    assert streamed.finish_reason == whole.finish_reason == "length"
    assert streamed.usage is not None
    assert whole.usage is not None
    assert streamed.usage["total_tokens"] == whole.usage["total_tokens"]


def test_the_reader_of_these_tests_can_fail() -> None:
    """The SSE reader refuses what clients stumble over."""
    good = b'data: {"a":1}\n\ndata: [DONE]\n\n'
    assert sse_events(good) == ['{"a":1}', "[DONE]"]
    for bad in (b'{"a":1}\n\n', b'data:{"a":1}\n\n', b'data: {"a":1}\r\n\r\n', b'data: {"a":1}\n', good + good):
        with pytest.raises((AssertionError, json.JSONDecodeError)):
            sse_chunks(bad)
