"""Tokens that come at given times: how the scripted engine delays a sequence without holding up the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Pacer(Protocol):
    """Told of every sequence, asked when its next token may be produced. Called from the compute thread."""

    def begin(self, sequence_id: str, prompt_ids: Sequence[int], choice: int, produced: int) -> int | None:
        """A sequence has arrived, with `produced` output tokens made elsewhere; returns after how many output tokens it
        ends, None when that's not for the pacer to say.

        Raises Failure when the sequence can't be served.
        """
        ...

    def due_at(self, sequence_id: str) -> float:
        """time.monotonic() seconds from which on the next token may be produced; inf: never."""
        ...

    def end(self, sequence_id: str) -> None:
        """The sequence is over."""
        ...
