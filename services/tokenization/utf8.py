"""Where a run of bytes stands within a UTF-8 character."""

from __future__ import annotations

import codecs

LONGEST_TAIL = 3  # bytes: one less than the longest character


def incomplete_tail(data: bytes) -> bytes:
    """The trailing 0 to 3 bytes that begin a character which further bytes could complete."""
    last = data[-LONGEST_TAIL:]
    _, consumed = codecs.utf_8_decode(last, "replace", False)
    return last[consumed:]
