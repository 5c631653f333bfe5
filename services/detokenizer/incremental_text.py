"""Bytes of an output -> its text, piece by piece, never half a character and never anything twice."""

from __future__ import annotations

import codecs


class IncrementalText:
    """The text of one choice. All pieces joined equal the whole output decoded at once: bytes that are no UTF-8
    become U+FFFD just as `bytes.decode("utf-8", "replace")` does it, and an unfinished character is held back.

    `prompt_tail` is the unfinished character (0 to 3 bytes) at the end of the prompt. Output that goes on with it
    finishes it; otherwise it was the prompt's own damage, which is no part of the output's text.
    """

    __slots__ = ("_held", "_prompt_tail")

    def __init__(self, prompt_tail: bytes = b"") -> None:
        self._prompt_tail = prompt_tail
        self._held = b""

    def push(self, data: bytes) -> str:
        """The text that is certain now."""
        if self._prompt_tail and data:
            if _goes_on(self._prompt_tail, data[:1]):
                self._held = self._prompt_tail
            self._prompt_tail = b""
        if self._held:
            data = self._held + data
        text, consumed = codecs.utf_8_decode(data, "replace", False)
        self._held = data[consumed:]
        return text

    def finish(self) -> str:
        """What is left when no more bytes come: U+FFFD for a character that stays unfinished."""
        held, self._held = self._held, b""
        return held.decode("utf-8", "replace")


def _goes_on(tail: bytes, following: bytes) -> bool:
    try:
        codecs.utf_8_decode(tail + following, "strict", False)
    except UnicodeDecodeError:
        return False
    return True
