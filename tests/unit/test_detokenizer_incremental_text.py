"""Bytes become text piece by piece, and the pieces are the whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.detokenizer.incremental_text import IncrementalText

B023 = "삼겹살 🏳️‍🌈 é한"

# Bytes that are likely to be nearly UTF-8: all the border cases of its table, in any order.
_BORDERS = st.sampled_from(
    [
        *(b"a", b"\x80", b"\xbf", b"\xc2", b"\xc3\xa9", b"\xe0\xa0", b"\xe0\x80", b"\xed\xa0\x80"),
        *(b"\xef\xbf\xbd", b"\xf0\x9f", b"\xf0\x80", b"\x98\x80", b"\xf4\x90", b"\xf5", b"\xff"),
        *("한".encode(), "🏳️‍🌈".encode()),
    ]
)
chunked_bytes = st.lists(st.one_of(_BORDERS, st.binary(max_size=5)), max_size=20)


def pieces(chunks: list[bytes], prompt_tail: bytes = b"") -> list[str]:
    text = IncrementalText(prompt_tail)
    return [*(text.push(chunk) for chunk in chunks), text.finish()]


@pytest.mark.parametrize("cut", range(len(B023.encode()) + 1))
def test_b023_text_cut_at_any_byte_is_whole(cut: int) -> None:
    data = B023.encode()
    assert "".join(pieces([data[:cut], data[cut:]])) == B023


def test_b023_one_byte_at_a_time_never_shows_half_a_character() -> None:
    got = pieces([bytes((byte,)) for byte in B023.encode()])
    assert "".join(got) == B023
    assert not any("\ufffd" in piece for piece in got)
    assert all(len(piece) <= 1 for piece in got)


@given(chunked_bytes)
def test_pieces_joined_equal_a_whole_decode(chunks: list[bytes]) -> None:
    got = pieces(chunks)
    assert "".join(got) == b"".join(chunks).decode("utf-8", "replace")


@given(chunked_bytes)
def test_holds_back_only_an_unfinished_character(chunks: list[bytes]) -> None:
    text = IncrementalText()
    sent, taken = "", b""
    for chunk in chunks:
        sent += text.push(chunk)
        taken += chunk
        whole = taken.decode("utf-8", "replace")
        assert whole.startswith(sent)
        assert len(whole) - len(sent) <= 1


def test_b025_output_finishes_the_prompts_last_character() -> None:
    emoji = "😀".encode()
    assert pieces([emoji[2:], b"ok"], prompt_tail=emoji[:2]) == ["😀", "ok", ""]


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_b025_output_finishes_it_byte_by_byte(cut: int) -> None:
    emoji = "😀".encode()
    assert "".join(pieces([bytes((byte,)) for byte in emoji[cut:]] + [b"ok"], emoji[:cut])) == "😀ok"


@pytest.mark.parametrize("output", [b"", b"ok", "é".encode(), b"\xff"])
def test_b025_an_unfinished_prompt_leaves_no_trace_in_other_output(output: bytes) -> None:
    assert "".join(pieces([output], prompt_tail=b"\xf0\x9f")) == output.decode("utf-8", "replace")


def test_b025_empty_tokens_do_not_lose_the_prompts_last_character() -> None:
    emoji = "😀".encode()
    assert "".join(pieces([b"", emoji[2:]], prompt_tail=emoji[:2])) == "😀"


@given(st.sampled_from(["é", "한", "😀"]), st.integers(1, 3), chunked_bytes)
def test_b025_prompt_and_output_together_are_a_whole_decode(character: str, length: int, chunks: list[bytes]) -> None:
    tail = character.encode()[: min(length, len(character.encode()) - 1)]
    output = b"".join(chunks)
    got = "".join(pieces(chunks, tail))
    whole = (tail + output).decode("utf-8", "replace")
    assert got in (whole, whole.removeprefix("\ufffd"))  # without the prompt's own damage
