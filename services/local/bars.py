"""Bars to scale, and percentages that add up to 100."""

from __future__ import annotations

from collections.abc import Sequence

FULL = "█"
# A left edge of so many eighths is drawn full; the right edge has a character for each eighth.
EIGHTHS = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")


def bar(start: float, end: float, whole: float, width: int) -> str:
    """A bar of `width` characters that covers [start, end] of [0, whole]; at least a thin line, however short."""
    if whole <= 0:
        return " " * width
    first = min(max(int(start / whole * width), 0), width - 1)
    eighths = max(1, round((min(end, whole) / whole * width - first) * 8))
    drawn = FULL * (eighths // 8) + EIGHTHS[eighths % 8]
    return (" " * first + drawn)[:width].ljust(width)


def percentages(parts: Sequence[float]) -> list[float]:
    """Shares of the sum in percent with one decimal that add up to exactly 100.0; all 0 when there is nothing to share.

    Rounded down, then the largest remainders get the missing tenths (Hamilton's method).
    """
    whole = sum(parts)
    if whole <= 0:
        return [0.0] * len(parts)
    exact = [part / whole * 1000 for part in parts]
    tenths = [int(share) for share in exact]
    by_remainder = sorted(range(len(parts)), key=lambda index: tenths[index] - exact[index])
    for index in by_remainder[: 1000 - sum(tenths)]:
        tenths[index] += 1
    return [tenth / 10 for tenth in tenths]
