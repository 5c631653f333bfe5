"""Writing for people: colour on a terminal, plain text in a pipe."""

from __future__ import annotations

import codecs
import io
import os
import shutil
import sys
import time
from dataclasses import dataclass, field

PIPE_WIDTH = 110
BOLD, DIM, RED, GREEN, YELLOW, BLUE, MAGENTA, CYAN = "1", "2", "31", "32", "33", "34", "35", "36"


def coloured() -> bool:
    """Whether standard output takes colour. NO_COLOR is the usual wish to have none."""
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ


def width_of() -> int:
    """The width of the terminal in characters; COLUMNS rules, and a pipe has PIPE_WIDTH."""
    return shutil.get_terminal_size((PIPE_WIDTH, 24)).columns


# What stands for the characters of bars and trees where the terminal has only ASCII.
_ASCII = {**dict.fromkeys("█▉▊▋▌", "#"), **dict.fromkeys("▍▎▏", ":"), "─": "-", "│": "|", "├": "|", "└": "`", "…": "~"}


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return "".join(_ASCII.get(character, "?") for character in error.object[error.start : error.end]), error.end


codecs.register_error("tokenpath-ascii", _in_ascii)


def take_any_character() -> None:
    """From now on standard output shows what its encoding lacks in ASCII, instead of failing."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="tokenpath-ascii")


def discard_output() -> None:
    """For a standard output whose reader has left: whatever is written from now on, or still in its buffer, goes
    nowhere without a complaint."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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
    """Lines with the time since the first, for work that takes seconds. The work goes on when nobody reads them any
    more: it may be what ends the processes that were started."""

    began: float = field(default_factory=time.monotonic)

    def __call__(self, line: str) -> None:
        try:
            print(f"[{time.monotonic() - self.began:5.1f} s] {line}", flush=True)
        except OSError:  # the pipe or the terminal has closed
            discard_output()
