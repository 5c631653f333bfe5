"""Stop strings over text that arrives in pieces: where the output ends, and what must not be sent before that is known.

Each stop string is followed by Knuth, Morris and Pratt's automaton: its state is the length of the longest prefix of
the stop string that the text so far ends with. That is at the same time the text to hold back. Time is linear in the
text whatever the stop strings are, and the result does not depend on how the text was cut into pieces.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """The stop strings of a request, none of them empty; its choices share this object."""

    def __init__(self, stops: Sequence[str], *, include_in_output: bool = False) -> None:
        if not all(stops):
            raise ValueError("a stop string is empty; leave it out")
        self.stops = tuple(stops)
        self.fallbacks = tuple(_fallbacks(stop) for stop in stops)
        self.first_characters = frozenset(stop[0] for stop in stops)
        self.include_in_output = include_in_output


class StopMatcher:
    """Follows the text of one choice. The stop string that is complete first ends it; of two that end at the same
    character, the longer one counts.
    """

    __slots__ = ("_held", "_states", "_stop_strings", "stopped")

    def __init__(self, stop_strings: StopStrings) -> None:
        self._stop_strings = stop_strings
        self._states = [0] * len(stop_strings.stops)
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """The text that may be sent now: all but the longest ending that could still become a stop string.

        After a match `stopped` is True and the returned text is the last: nothing of what follows the stop string, and
        the stop string itself only if it was asked for.
        """
        if not self._held and self._stop_strings.first_characters.isdisjoint(text):
            return text
        for position, character in enumerate(text):
            matched = self._advance(character)
            if matched:
                self.stopped = True
                output = self._held + text[: position + 1]
                self._held = ""
                return output if self._stop_strings.include_in_output else output[:-matched]
        output = self._held + text
        certain = len(output) - max(self._states)
        self._held = output[certain:]
        return output[:certain]

    def finish(self) -> str:
        """The text held back, when the output ends without a match."""
        held, self._held = self._held, ""
        return held

    def _advance(self, character: str) -> int:
        """Length of the longest stop string that ends with this character, 0 for none."""
        matched = 0
        states = self._states
        for number, stop in enumerate(self._stop_strings.stops):
            state = states[number]
            fallbacks = self._stop_strings.fallbacks[number]
            while state and stop[state] != character:
                state = fallbacks[state - 1]
            if stop[state] == character:
                state += 1
            states[number] = state
            if state == len(stop):
                matched = max(matched, state)
        return matched


def _fallbacks(stop: str) -> tuple[int, ...]:
    """For each prefix of `stop`: the length of its longest proper ending that is also a prefix of `stop`."""
    lengths = [0] * len(stop)
    state = 0
    for position in range(1, len(stop)):
        while state and stop[state] != stop[position]:
            state = lengths[state - 1]
        if stop[state] == stop[position]:
            state += 1
        lengths[position] = state
    return tuple(lengths)
