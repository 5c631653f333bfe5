"""Stop strings end the text, and no part of one is ever sent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.detokenizer.stop_strings import StopMatcher, StopStrings


def run(pieces: list[str], stops: list[str], *, include: bool = False) -> tuple[list[str], bool]:
    """The texts sent, one a piece and one for the end, and whether a stop string ended it."""
    matcher = StopMatcher(StopStrings(stops, include_in_output=include))
    sent = []
    for piece in pieces:
        sent.append(matcher.push(piece))
        if matcher.stopped:
            return sent, True
    return [*sent, matcher.finish()], False


def expected(text: str, stops: list[str], *, include: bool) -> tuple[str, bool]:
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return text[: end if include else end - max(map(len, found))], True
    return text, False


def test_b007_no_part_of_a_stop_string_leaks() -> None:
    assert run(["x", "DE", "FG", "HIJ"], ["EFGHI"]) == (["x", "D", "", ""], True)


def test_b007_a_near_miss_is_sent_whole_and_at_once() -> None:
    assert run(["x", "DE", "FG", "X"], ["EFGHI"]) == (["x", "D", "", "EFGX", ""], False)


def test_text_held_back_is_sent_when_the_output_ends() -> None:
    assert run(["abE", "F"], ["EFGHI"]) == (["ab", "", "EF"], False)


def test_holds_back_no_more_than_could_still_match() -> None:
    # After "aab" only "ab" can begin the stop string; the first "a" is certain.
    assert run(["a", "a", "b", "c"], ["abd"]) == (["", "a", "", "abc", ""], False)


def test_a_stop_string_that_begins_inside_a_near_miss_is_found() -> None:
    assert run(list("aaaab"), ["aaab"]) == (["", "", "", "a", ""], True)


def test_the_stop_string_complete_first_ends_the_text() -> None:
    assert run(["abcd"], ["abcd", "bc"]) == (["a"], True)
    assert run(list("abcd"), ["abcd", "bc"]) == (["", "", "a"], True)


def test_the_longer_of_two_that_end_together_is_removed() -> None:
    assert run(["xabc"], ["c", "abc", "bc"]) == (["x"], True)


def test_the_stop_string_stays_when_asked_for() -> None:
    assert run(["one. t", "wo"], [". "], include=True) == (["one. "], True)


def test_characters_outside_ascii() -> None:
    assert run(["삼", "겹", "살 🏳️"], ["겹살"]) == (["삼", "", ""], True)


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopStrings(["a", ""])


def test_a_repetitive_stop_string_costs_linear_time() -> None:
    matcher = StopMatcher(StopStrings(["a" * 5000 + "b"] * 4))
    sent = "".join(matcher.push("aaaa") for _ in range(5000)) + matcher.finish()
    assert sent == "a" * 20000


small_texts = st.lists(st.text(alphabet="abé", max_size=4), max_size=12)
small_stops = st.lists(st.text(alphabet="abé", min_size=1, max_size=4), min_size=1, max_size=4)


@given(small_texts, small_stops, st.booleans())
def test_result_does_not_depend_on_how_the_text_is_cut(pieces: list[str], stops: list[str], include: bool) -> None:
    sent, stopped = run(pieces, stops, include=include)
    assert ("".join(sent), stopped) == expected("".join(pieces), stops, include=include)


@given(small_texts, small_stops)
def test_what_is_held_back_is_the_longest_possible_beginning_of_a_stop_string(
    pieces: list[str], stops: list[str]
) -> None:
    matcher = StopMatcher(StopStrings(stops))
    sent = taken = ""
    for piece in pieces:
        sent += matcher.push(piece)
        taken += piece
        if matcher.stopped:
            return
        beginnings = {stop[:length] for stop in stops for length in range(len(stop))}
        assert taken[len(sent) :] == max((each for each in beginnings if taken.endswith(each)), key=len)
