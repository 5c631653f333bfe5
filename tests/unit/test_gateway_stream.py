"""Bytes of a streamed answer, and answers in one piece."""

import json
from typing import Any

import grpc
import pytest

from services.gateway.errors import ApiError, error_body, http_status, retry_headers
from services.gateway.stream.chunks import CHAT_SHAPE, COMPLETION_SHAPE, ChunkEncoder, Identity, UsageMode
from services.gateway.stream.collected import Choice, chat_choice, completion_choice
from services.gateway.stream.logprobs import CompletionLogprobsJson, chat_logprobs_json
from services.platform.failures import Failure
from tokenpath.v1.detokenizer_pb2 import Delta, TokenLogprob

IDENTITY = Identity("chatcmpl-1", "chat.completion.chunk", 7, 'm"odel')


def running_usage(unsent: int) -> bytes:
    return json.dumps({"completion_tokens": 10 - unsent}).encode()


def encoder(usage: UsageMode = UsageMode.NONE, **changes: Any) -> ChunkEncoder:
    given: dict[str, Any] = {"shape": CHAT_SHAPE, "choices": 2, "logprobs": None} | changes
    return ChunkEncoder(IDENTITY, usage=usage, **given)


def parsed(raw: bytes) -> list[Any]:
    """Events of well-formed SSE: one `data: ` line each, LF only."""
    assert raw.endswith(b"\n\n")
    assert b"\r" not in raw
    found = []
    for event in raw[:-2].split(b"\n\n"):
        assert event.startswith(b"data: ")
        assert b"\n" not in event
        found.append("[DONE]" if event == b"data: [DONE]" else json.loads(event[6:]))
    return found


def test_one_event_a_delta_with_the_role_in_each_choices_first() -> None:
    chunks = encoder()
    given = [Delta(index=1, text="a"), Delta(text="b"), Delta(index=1, text="c")]
    events = parsed(chunks.encode(0, given, running_usage))
    deltas = [(event["choices"][0]["index"], event["choices"][0]["delta"]) for event in events]
    role = {"role": "assistant"}
    assert deltas == [(1, role | {"content": "a"}), (0, role | {"content": "b"}), (1, {"content": "c"})]
    assert {(event["id"], event["object"], event["created"], event["model"]) for event in events} == {
        ("chatcmpl-1", "chat.completion.chunk", 7, 'm"odel')
    }


def test_b002_finish_reason_is_null_until_the_choice_ends() -> None:
    events = parsed(encoder().encode(0, [Delta(text="a"), Delta(text="b", finish_reason="length")], running_usage))
    assert [event["choices"][0]["finish_reason"] for event in events] == [None, "length"]


@pytest.mark.parametrize("text", ["line\nbreak\r\n", 'quote"\\', "삼겹살 🏳️‍🌈", "\u2028\u0000", ""])
def test_any_text_stays_one_line(text: str) -> None:
    (event,) = parsed(encoder().encode(0, [Delta(text=text)], running_usage))
    assert event["choices"][0]["delta"]["content"] == text


def test_b001_usage_is_null_until_one_last_chunk_without_choices() -> None:
    chunks = encoder(UsageMode.FINAL)
    raw = chunks.encode(0, [Delta(text="a"), Delta(text="b", finish_reason="stop")], running_usage)
    *events, usage, done = parsed(raw + chunks.ending(b'{"total_tokens":3}'))
    assert [event["usage"] for event in events] == [None, None]
    assert (usage["choices"], usage["usage"], done) == ([], {"total_tokens": 3}, "[DONE]")


def test_b001_usage_that_was_not_asked_for_does_not_appear() -> None:
    chunks = encoder()
    *events, done = parsed(chunks.encode(0, [Delta(text="a")], running_usage) + chunks.ending(b"{}"))
    assert done == "[DONE]"
    assert all("usage" not in event for event in events)


def test_continuous_usage_counts_up_within_a_message() -> None:
    deltas = [Delta(text="a", tokens=1), Delta(text="b", tokens=2), Delta(text="c", tokens=1)]
    events = parsed(encoder(UsageMode.CONTINUOUS).encode(0, deltas, running_usage))
    assert [event["usage"]["completion_tokens"] for event in events] == [7, 9, 10]


def test_completions_carry_text_and_prompts_shift_the_index() -> None:
    (event,) = parsed(encoder(shape=COMPLETION_SHAPE, choices=4).encode(2, [Delta(index=1, text="x")], running_usage))
    assert event["choices"] == [{"index": 3, "text": "x", "logprobs": None, "finish_reason": None}]


def token(text: bytes, logprob: float = -0.5) -> TokenLogprob:
    top = [TokenLogprob(token=b"other", logprob=float("-inf"))]
    return TokenLogprob(token=text, logprob=logprob, top=top)


def test_logprobs_of_a_chat_chunk() -> None:
    delta = Delta(text="é", logprobs=[token(b"\xc3"), token(b"\xa9")])
    (event,) = parsed(encoder(logprobs=chat_logprobs_json).encode(0, [delta], running_usage))
    first, second = event["choices"][0]["logprobs"]["content"]
    assert (first["bytes"], second["bytes"]) == ([0xC3], [0xA9])
    assert first["logprob"] == -0.5
    assert first["top_logprobs"][0]["logprob"] == -9999.0


def test_logprobs_offsets_of_completions_go_on_over_chunks() -> None:
    chunks = encoder(shape=COMPLETION_SHAPE, logprobs=CompletionLogprobsJson())
    deltas = [Delta(text="ab", logprobs=[token(b"a"), token(b"b")]), Delta(text="c", logprobs=[token(b"c")])]
    events = parsed(chunks.encode(0, deltas, running_usage))
    assert [event["choices"][0]["logprobs"]["text_offset"] for event in events] == [[0, 1], [2]]
    choice = completion_choice(0, Choice(["ab", "c"], deltas, "stop"), True)
    assert choice["logprobs"]["tokens"] == ["a", "b", "c"]
    assert choice["logprobs"]["text_offset"] == [0, 1, 2]


def test_a_choice_in_one_piece() -> None:
    choice = chat_choice(1, Choice(["a", "b"], [], "length"), False)
    assert choice["message"]["content"] == "ab"
    assert (choice["index"], choice["finish_reason"], choice["logprobs"]) == (1, "length", None)


def test_errors_have_openais_shape_and_say_when_to_come_back() -> None:
    full = Failure(grpc.StatusCode.RESOURCE_EXHAUSTED, "queue full", retry_after_ms=1500)
    assert http_status(full) == 429
    assert dict(retry_headers(full)) == {b"retry-after": b"2", b"retry-after-ms": b"1500"}
    assert json.loads(error_body(full)) == {
        "error": {"message": "queue full", "type": "rate_limit_error", "param": None, "code": "rate_limit_exceeded"}
    }
    assert retry_headers(ApiError(400, "no")) == []
    codes = grpc.StatusCode
    expected = {
        codes.INVALID_ARGUMENT: 400,
        codes.UNAUTHENTICATED: 401,
        codes.NOT_FOUND: 404,
        codes.UNAVAILABLE: 503,
        codes.FAILED_PRECONDITION: 503,
        codes.DEADLINE_EXCEEDED: 504,
        codes.CANCELLED: 499,
        codes.INTERNAL: 500,
        codes.UNKNOWN: 500,
    }
    assert {code: http_status(Failure(code, "x")) for code in expected} == expected
