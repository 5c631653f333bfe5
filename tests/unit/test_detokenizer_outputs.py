"""Choices of a request: tokens in, deltas and counts out."""

from __future__ import annotations

import functools

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from smg_grpc_proto.generated.vllm_engine_pb2 import GenerateResponse, OutputLogProbs, TopLogProbs

from services.detokenizer.choice import OutputRules
from services.detokenizer.outputs import Outputs
from services.detokenizer.stop_strings import StopStrings
from services.platform.failures import Failure
from services.tokenization.tokenizer import Tokenizer
from tokenpath.v1.detokenizer_pb2 import Delta

pytestmark = pytest.mark.model

EOS = 2


@functools.cache
def tokenizer() -> Tokenizer:
    return Tokenizer.load("smollm2")


def encode(text: str) -> list[int]:
    return tokenizer().encode(text, add_special_tokens=False)


def chunk(ids: list[int], *, index: int = 0, logprobs: OutputLogProbs | None = None) -> GenerateResponse:
    message = GenerateResponse()
    message.chunk.token_ids.extend(ids)
    message.chunk.index = index
    message.chunk.prompt_tokens = 7
    message.chunk.cached_tokens = 3
    if logprobs is not None:
        message.chunk.output_logprobs.CopyFrom(logprobs)
    return message


def complete(reason: str = "length", *, index: int = 0, tokens: int = 0, ids: tuple[int, ...] = ()) -> GenerateResponse:
    message = GenerateResponse()
    message.complete.finish_reason = reason
    message.complete.index = index
    message.complete.completion_tokens = tokens
    message.complete.output_ids.extend(ids)
    message.complete.prompt_tokens = 7
    return message


def outputs(choices: int = 1, **rules: object) -> Outputs:
    return Outputs(tokenizer(), OutputRules(**rules), choices)  # type: ignore[arg-type]


def take_all(made: Outputs, messages: list[GenerateResponse]) -> list[Delta]:
    return [delta for message in messages for delta in made.take(message)[0]]


def text_of(deltas: list[Delta], index: int = 0) -> str:
    return "".join(delta.text for delta in deltas if delta.index == index)


def test_one_delta_a_token_and_a_last_one_with_the_reason() -> None:
    made = outputs()
    deltas = take_all(made, [chunk(encode("Hello world")), complete("length", tokens=2)])
    assert [(delta.text, delta.tokens, delta.finish_reason) for delta in deltas] == [
        ("Hello", 1, ""),
        (" world", 1, ""),
        ("", 0, "length"),
    ]
    assert made.finished
    usage = made.usage()
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (7, 2, 3)


def test_tokens_of_half_characters_ride_with_the_delta_that_shows_them() -> None:
    byte_ids = {tokenizer().token_bytes(each): each for each in range(tokenizer().vocab_size)}
    ids = [byte_ids[bytes((byte,))] for byte in "é한".encode()]
    deltas = take_all(outputs(), [chunk(ids), complete(tokens=5)])
    assert [(delta.text, delta.tokens) for delta in deltas] == [("é", 2), ("한", 3), ("", 0)]


def test_eos_counts_as_a_token_but_is_no_text() -> None:
    made = outputs(silent_ids={EOS})
    deltas = take_all(made, [chunk([*encode("Hi"), EOS]), complete("stop", tokens=2)])
    assert text_of(deltas) == "Hi"
    assert sum(delta.tokens for delta in deltas) == made.usage().completion_tokens == 2


def test_eos_that_the_engine_does_not_stream_counts_too() -> None:
    made = outputs(silent_ids={EOS})
    deltas = take_all(made, [chunk(encode("Hi")), complete("stop", tokens=2)])
    assert (deltas[-1].tokens, deltas[-1].finish_reason) == (1, "stop")
    assert made.usage().completion_tokens == 2


def test_special_tokens_show_only_when_asked_for() -> None:
    ids = encode("a<repo_name>b")
    assert text_of(take_all(outputs(), [chunk(ids)])) == "ab"
    assert text_of(take_all(outputs(keep_special_tokens=True), [chunk(ids)])) == "a<repo_name>b"
    kept = take_all(outputs(keep_special_tokens=True, silent_ids={EOS}), [chunk([*ids, EOS])])
    assert text_of(kept) == "a<repo_name>b"


def test_b007_a_stop_string_over_tokens_ends_its_choice_alone() -> None:
    made = outputs(2, stop_strings=StopStrings(["EFGHI"]))
    ids = [encode(piece)[0] for piece in ("x", "DE", "F", "G", "HI")]
    assert [tokenizer().token_bytes(each) for each in ids] == [b"x", b"DE", b"F", b"G", b"HI"]
    deltas: list[Delta] = []
    stopped = []
    for message in (chunk(ids[:4]), chunk(encode(" other"), index=1), chunk([*ids[4:], 500]), chunk([501])):
        got, index = made.take(message)
        deltas += got
        stopped.append(index)
    assert stopped == [None, None, 0, None]
    assert text_of(deltas) == "xD"
    assert [(d.text, d.tokens, d.finish_reason) for d in deltas if d.index == 0] == [
        ("x", 1, ""),
        ("D", 1, ""),
        ("", 3, "stop"),
    ]
    assert not made.finished
    assert take_all(made, [complete("abort", tokens=9)]) == []  # what the engine says of it no longer matters
    take_all(made, [complete("length", index=1, tokens=1)])
    assert made.finished
    assert made.usage().completion_tokens == 5 + 1


def test_a_held_back_beginning_is_sent_when_the_engine_ends() -> None:
    deltas = take_all(outputs(stop_strings=StopStrings(["Hello world"])), [chunk(encode("Hello")), complete(tokens=1)])
    assert [(delta.text, delta.tokens, delta.finish_reason) for delta in deltas] == [("Hello", 1, "length")]


def test_logprobs_ride_with_the_delta_that_covers_them() -> None:
    first, second = encode("Hello world")
    logprobs = OutputLogProbs(
        token_ids=[first, second],
        token_logprobs=[-0.5, -1.5],
        top_logprobs=[
            TopLogProbs(token_ids=[first, 0], values=[-0.5, -2.0]),
            TopLogProbs(token_ids=[second], values=[-1.5]),
        ],
    )
    rules = {"stop_strings": StopStrings(["Hello w!"])}
    deltas = take_all(outputs(**rules), [chunk([first, second], logprobs=logprobs)])
    (delta,) = deltas
    assert (delta.text, delta.tokens) == ("Hello world", 2)
    assert [(each.token, each.logprob) for each in delta.logprobs] == [(b"Hello", -0.5), (b" world", -1.5)]
    assert [(each.token_id, each.logprob) for each in delta.logprobs[0].top] == [(first, -0.5), (0, -2.0)]


def test_an_engine_that_does_not_stream_is_understood() -> None:
    deltas = take_all(outputs(), [complete("length", tokens=2, ids=tuple(encode("Hello world")))])
    assert text_of(deltas) == "Hello world"
    assert deltas[-1].finish_reason == "length"


def test_a_choice_that_was_not_asked_for_is_an_error() -> None:
    with pytest.raises(Failure, match="choice 1 of 1") as failure:
        outputs().take(chunk([500], index=1))
    assert failure.value.status is grpc.StatusCode.INTERNAL


def test_a_choice_that_the_engine_gives_up_is_an_error_and_never_a_normal_end() -> None:
    with pytest.raises(Failure) as failure:
        outputs().take(complete("abort"))
    assert failure.value.status is grpc.StatusCode.UNAVAILABLE


token_ids = st.lists(st.one_of(st.integers(17, 300), st.integers(0, 49151)), max_size=40)


@given(token_ids, st.data())
def test_joined_deltas_are_the_whole_decode_up_to_the_stop_string(ids: list[int], data: st.DataObject) -> None:
    whole = tokenizer().decode(ids)
    stops = data.draw(
        st.lists(st.one_of(st.sampled_from([whole[a : a + 3] for a in range(len(whole))] or ["x"])), max_size=4)
    )
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=5)))
    groups = [ids[a:b] for a, b in zip([0, *cuts], [*cuts, len(ids)], strict=True)]
    made = outputs(stop_strings=StopStrings(stops) if stops else None)
    deltas = take_all(made, [*map(chunk, groups), complete("length", tokens=len(ids))])

    ends = [(whole.find(stop) + len(stop), whole.find(stop)) for stop in stops if stop in whole]
    assert text_of(deltas) == (whole[: min(ends)[1]] if ends else whole)
    assert [delta.finish_reason for delta in deltas if delta.finish_reason] == ["stop" if ends else "length"]
    assert sum(delta.tokens for delta in deltas) == made.usage().completion_tokens
    if not ends:
        assert made.usage().completion_tokens == len(ids)
