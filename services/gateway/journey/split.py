"""Time split into named parts that add up exactly.

Intervals may overlap (a worker computes inside the gateway's own wait for it). At each moment the interval of the
highest rank owns the time, so nothing is counted twice, and what no interval covers is `unaccounted`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

UNACCOUNTED = "unaccounted"


@dataclass(frozen=True, slots=True)
class Interval:
    """Measured time, in nanoseconds since the request's arrival. `parts` are durations inside it, without a place."""

    name: str
    start_ns: int
    end_ns: int
    rank: int
    parts: tuple[tuple[str, int], ...] = ()
    leading: tuple[str, ...] = ()  # parts that are known to come first, in this order


@dataclass(frozen=True, slots=True)
class Part:
    """A named piece of a duration."""

    name: str
    duration_ns: int


def split(start_ns: int, end_ns: int, intervals: Sequence[Interval]) -> list[Part]:
    """Split [start_ns, end_ns] by its owners, in order of first appearance; the sum is exactly end_ns - start_ns."""
    owned = [0] * len(intervals)
    free = 0
    order: list[int] = []
    cuts = {start_ns, end_ns}
    for interval in intervals:
        cuts |= {cut for cut in (interval.start_ns, interval.end_ns) if start_ns < cut < end_ns}
    edges = sorted(cuts)
    for left, right in pairwise(edges):
        owner = _owner(left, right, intervals)
        if owner is None:
            free += right - left
            continue
        if not owned[owner]:
            order.append(owner)
        owned[owner] += right - left
    sums: dict[str, int] = {}
    for index in order:
        for part in _parts(intervals[index], owned[index]):
            sums[part.name] = sums.get(part.name, 0) + part.duration_ns
    sums[UNACCOUNTED] = free
    return [Part(name, duration) for name, duration in sums.items()]


def _owner(left: int, right: int, intervals: Sequence[Interval]) -> int | None:
    best: int | None = None
    for index, interval in enumerate(intervals):
        covers = interval.start_ns <= left and right <= interval.end_ns
        if covers and (best is None or interval.rank > intervals[best].rank):
            best = index
    return best


def _parts(interval: Interval, owned_ns: int) -> list[Part]:
    """An interval that owns all of its time is split further. One that is cut short can't say which part was cut,
    except that its leading parts went first."""
    parts = interval.parts
    rest = owned_ns
    if owned_ns != interval.end_ns - interval.start_ns or sum(duration for _, duration in parts) > owned_ns:
        durations = dict(parts)
        parts = tuple((name, durations.get(name, 0)) for name in interval.leading)
    inner = []
    for name, duration in parts:
        taken = min(duration, rest)
        rest -= taken
        if taken:
            inner.append(Part(f"{interval.name}.{name}", taken))
    return [*inner, Part(interval.name, rest)] if rest or not inner else inner
