"""Text through the whole path: stop strings, characters cut at every byte, spaces."""

from __future__ import annotations

import pytest

from services.tokenization.source import DEFAULT_MODEL
from services.tokenization.tokenizer import Tokenizer
from tests.e2e.api import MODES, Answer, Api, Mode, script
from tests.e2e.metrics import metric
from tests.eventually import eventually

HARD = "삼겹살 🏳️‍🌈 é한"


@pytest.fixture(scope="module")
def token_of() -> dict[bytes, int]:
    """Token ids by the bytes that they stand for."""
    tokenizer = Tokenizer.load(DEFAULT_MODEL)
    plain = [token for token in range(tokenizer.vocab_size) if not tokenizer.is_special(token)]
    return {tokenizer.token_bytes(token): token for token in plain}


def whole_characters(answer: Answer) -> None:
    """No delta holds a piece of a character."""
    assert "�" not in answer.text
    for delta in answer.deltas[0]:
        delta.encode()  # raises on a lone surrogate


PIECES = ["x", "DE", "F", "GH", "I", "J"]


@pytest.mark.parametrize("mode", MODES, ids=str)
class TestStopStrings:
    async def test_b007_a_stop_string_over_several_tokens(self, api: Api, mode: Mode) -> None:
        """B007: the text is exactly what came before it, and no event ever showed the start of it."""
        answer = await api.ask(mode, script(pieces=PIECES, repeat=3), stop="EFGHI")
        assert (answer.text, answer.finish_reason) == ("xD", "stop")
        assert answer.usage is not None
        assert answer.usage["completion_tokens"] == 5  # up to the token that completed it, no further

    async def test_b007_a_near_miss_is_flushed_whole(self, api: Api, mode: Mode) -> None:
        answer = await api.ask(mode, script(pieces=["x", "DE", "F", "X"]), stop="EFGHI")
        assert (answer.text, answer.finish_reason) == ("xDEFX", "stop")
        at_the_end = await api.ask(mode, script(pieces=["x", "DE", "F"], finish="length"), stop=["EFGHI", "zz"])
        assert (at_the_end.text, at_the_end.finish_reason) == ("xDEF", "length")

    async def test_the_earliest_of_several_counts(self, api: Api, mode: Mode) -> None:
        answer = await api.ask(mode, script(pieces=PIECES), stop=["IJ", "FGH", "G", "J"])
        assert (answer.text, answer.finish_reason) == ("xDEF", "stop")

    async def test_the_first_token_of_all_may_stop(self, api: Api, mode: Mode) -> None:
        """Prefill makes it, decode only relays it."""
        answer = await api.ask(mode, script(pieces=PIECES), stop="x")
        assert (answer.text, answer.finish_reason) == ("", "stop")
        assert answer.usage is not None
        assert answer.usage["completion_tokens"] == 1

    async def test_it_can_be_left_in(self, api: Api, mode: Mode) -> None:
        answer = await api.ask(mode, script(pieces=PIECES), stop="FG", include_stop_str_in_output=True)
        assert (answer.text, answer.finish_reason) == ("xDEFG", "stop")

    async def test_b007_stops_that_are_none(self, api: Api, mode: Mode) -> None:
        for stop in ("", [""], ["a", ""], ["a", "b", "c", "d", "e"], [1], 5):
            answer = await api.ask(mode, script(pieces=PIECES), stop=stop)
            assert (answer.status, answer.error["param"]) == (400, "stop"), stop

    async def test_each_choice_stops_by_itself(self, api: Api, mode: Mode) -> None:
        texts = [["x", "DE", "F", "GH"], ["x", "F"], ["F", "GH", "I", "J"]]
        prompt = script(choices=[{"pieces": pieces, "itl_ms": 2} for pieces in texts])
        answer = await api.ask(mode, prompt, n=3, stop="FG")
        assert answer.texts == ["xDE", "xF", ""]
        assert answer.finish == {0: ["stop"], 1: ["stop"], 2: ["stop"]}
        assert answer.usage is not None
        assert answer.usage["completion_tokens"] == 4 + 3 + 2


async def test_a_choice_that_stopped_costs_the_engine_nothing_more(api: Api) -> None:
    """It is taken off the batch while the other choices of its request go on."""
    stopping, lasting = {"pieces": ["x", "DE"], "repeat": 500}, {"pieces": ["x"], "repeat": 1000}
    prompt = script(choices=[stopping, lasting], itl_ms=5)

    def running() -> float:
        return sum(metric(api.stack, worker, "vllm:num_requests_running") for worker in ("decode-0", "decode-1"))

    async with api.open(Mode("chat", True), prompt, n=2, stop="DE", max_tokens=1000) as response:
        events = response.aiter_lines()
        while '"finish_reason":"stop"' not in await anext(events):
            pass
        await eventually(lambda: running() == 1, "only the other choice runs", 2)
    await eventually(lambda: running() == 0, "nothing runs when the client has left")


@pytest.mark.parametrize("mode", MODES, ids=str)
class TestCharacters:
    async def test_b023_one_byte_a_token(self, api: Api, mode: Mode) -> None:
        """B023: every character arrives whole and once, though every token holds one byte."""
        answer = await api.ask(mode, script(bytes=HARD.encode().hex()), max_tokens=100)
        assert answer.text == HARD
        whole_characters(answer)
        assert answer.usage is not None
        assert answer.usage["completion_tokens"] == len(HARD.encode()) + 1

    async def test_b023_answers_that_end_at_every_byte(self, api: Api, mode: Mode) -> None:
        """Ended inside a character, the text is that of a whole decode; ended between two, it holds no U+FFFD."""
        data = HARD.encode()
        for length in range(1, len(data) + 1):
            answer = await api.ask(mode, script(bytes=data.hex()), max_tokens=length)
            assert answer.text == data[:length].decode("utf-8", "replace"), length
            assert answer.finish_reason == "length"

    async def test_b023_a_stop_string_inside_bytes(self, api: Api, mode: Mode) -> None:
        answer = await api.ask(mode, script(bytes=HARD.encode().hex()), stop="🏳️‍🌈 é", max_tokens=100)
        assert (answer.text, answer.finish_reason) == ("삼겹살 ", "stop")

    async def test_b026_spaces_and_newlines_survive(self, api: Api, mode: Mode) -> None:
        """B026: joined deltas are the whole decode, leading, inner and repeated spaces included."""
        pieces = [" Hello", " world", "!", " ", " ", "x", "\n", "  ", " code", "\t"]
        answer = await api.ask(mode, script(pieces=pieces), max_tokens=32)
        assert answer.text == "".join(pieces)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("cut", [1, 2, 3])
async def test_b025_a_prompt_that_ends_inside_a_character(
    api: Api, token_of: dict[bytes, int], stream: bool, cut: int
) -> None:
    """B025: the answer finishes the prompt's character; nothing else of the prompt is in it."""
    emoji = "🦊".encode()
    said = (emoji[cut:] + b"ok").hex()
    asked = [token_of[bytes([byte])] for byte in f'secret SCRIPT:{{"bytes":"{said}"}}'.encode() + emoji[:cut]]
    answer = await api.ask(Mode("completions", stream), asked)
    assert answer.text == "🦊ok"
    assert answer.deltas[0][0] == ("🦊" if stream else "🦊ok")
