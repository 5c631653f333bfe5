"""Writing for people: colour on a terminal, plain text in a pipe."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass, field

BOLD, DIM, RED, GREEN, YELLOW, BLUE, MAGENTA, CYAN = "1", "2", "31", "32", "33", "34", "35", "36"


def coloured() -> bool:
    """Whether standard output takes colour. NO_COLOR is the usual wish to have none."""
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ


def paint(text: str, *codes: str, on: bool) -> str:
    return f"\033[{';'.join(codes)}m{text}\033[0m" if on and codes else text


def size_words(count: float) -> str:
    """A number of bytes with a unit, in at most 8 characters."""
    for unit in ("B", "KB", "MB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.2f} GB"


@dataclass
class Progress:
    """Lines with the time since the first, for work that takes seconds."""

    began: float = field(default_factory=time.monotonic)

    def __call__(self, line: str) -> None:
        print(f"[{time.monotonic() - self.began:5.1f} s] {line}", flush=True)
