"""Where a request's time goes, written down as it goes: the gateway's own work, its calls, and what these reported."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from services.gateway.journey.split import Interval, Part, split
from tokenpath.v1.common_pb2 import StageReport

SHARED = -1
"""The track of what happens once for a request, however many prompts it has. Prompts run side by side: track i."""

_OWN_RANK = 100
_CALL_RANK = 0
_WAITING_RANK = -1
_STAGE_RANK = 10
# Stages that overlap inside one call: the one named later owns the time. A page published while the prompt is still
# being computed costs nothing extra; a page fetched during decode's residence is what decode waits for.
_RANKS = {"kv_publish": 11, "detokenize": 20, "decode": 21, "kv_fetch": 22, "prefill": 23}
# A decode worker that computes the prompt itself does this before it has a token.
_PROMPT_PARTS = ("queue", "prefill_compute")


@dataclass
class Entry:
    """One piece of own work or (rank _CALL_RANK) one call to another service, in ns since arrival."""

    name: str
    track: int
    start_ns: int
    rank: int
    end_ns: int = 0
    error: str = ""
    reports: list[StageReport] = field(default_factory=list)
    attributes: dict[str, str] = field(default_factory=dict)

    @property
    def is_stage(self) -> bool:
        """Not just the gateway's wait for one."""
        return self.rank != _WAITING_RANK


class Recorder:
    """One request's stopwatch. Arrival is when it is made."""

    def __init__(self) -> None:
        self._arrival_ns = time.perf_counter_ns()
        self.started_unix_ns = time.time_ns()
        self.entries: list[Entry] = []
        self.first_content_ns: int | None = None
        self._first_track = 0
        self._last_track = 0

    def elapsed_ns(self) -> int:
        """Nanoseconds since arrival."""
        return time.perf_counter_ns() - self._arrival_ns

    @contextmanager
    def own(self, name: str, track: int = SHARED) -> Iterator[Entry]:
        """Time the gateway's own work."""
        yield from self._timed(Entry(name, track, self.elapsed_ns(), _OWN_RANK))

    def accepted(self) -> None:
        """The head of the request has been dealt with: what went before is the part `accept`."""
        self.entries.append(Entry("accept", SHARED, 0, _OWN_RANK, self.elapsed_ns()))

    @contextmanager
    def waiting(self, name: str) -> Iterator[Entry]:
        """Time during which others work on the gateway's behalf; theirs goes first."""
        yield from self._timed(Entry(name, SHARED, self.elapsed_ns(), _WAITING_RANK))

    @contextmanager
    def call(self, stage: str, track: int = SHARED) -> Iterator[Entry]:
        """Time a call as the gateway sees it; the callee's reports go into `entry.reports`."""
        yield from self._timed(Entry(stage, track, self.elapsed_ns(), _CALL_RANK))

    def _timed(self, entry: Entry) -> Iterator[Entry]:
        self.entries.append(entry)
        try:
            yield entry
        finally:
            entry.end_ns = self.elapsed_ns()

    def content_sent(self, track: int) -> None:
        """The client has been sent text of prompt `track` (or it has been gathered, when nothing is streamed)."""
        if self.first_content_ns is None:
            self.first_content_ns = self.elapsed_ns()
            self._first_track = self._last_track = track

    def track_ended(self, track: int) -> None:
        """The answer to prompt `track` is complete."""
        self._last_track = track

    def reported_ns(self, stage: str) -> int:
        """The sum of what services reported for a stage."""
        return sum(report.duration_ns for entry in self.entries for report in entry.reports if report.stage == stage)

    def ttft_parts(self) -> list[Part]:
        """Arrival to first content, along the prompt that was first."""
        return [] if self.first_content_ns is None else self._split(self.first_content_ns, self._first_track)

    def total_parts(self, total_ns: int) -> list[Part]:
        """The whole request, along the prompt that ended last."""
        return self._split(total_ns, self._last_track)

    def _split(self, end_ns: int, track: int) -> list[Part]:
        entries = [entry for entry in self.entries if entry.track in (SHARED, track)]
        alone = not any(report.stage == "prefill" for entry in entries for report in entry.reports)
        leading = _PROMPT_PARTS if alone else ()
        return split(0, end_ns, [interval for entry in entries for interval in self._intervals(entry, leading)])

    def _intervals(self, entry: Entry, leading: tuple[str, ...]) -> list[Interval]:
        end_ns = entry.end_ns or self.elapsed_ns()
        if entry.rank != _CALL_RANK:
            return [Interval(entry.name, entry.start_ns, end_ns, entry.rank)]
        observed = Interval(f"{entry.name}.rpc", entry.start_ns, end_ns, _CALL_RANK)
        return [observed, *(self._placed(report, observed, leading) for report in entry.reports)]

    def _placed(self, report: StageReport, observed: Interval, leading: tuple[str, ...]) -> Interval:
        """A stage's own interval, moved inside the call that carried it: other hosts' clocks may differ from ours."""
        duration = min(report.duration_ns, observed.end_ns - observed.start_ns)
        latest = observed.end_ns - duration
        start = min(max(report.start_unix_ns - self.started_unix_ns, observed.start_ns), latest)
        parts = tuple((part.name, part.duration_ns) for part in report.parts)
        first = leading if report.stage == "decode" else ()
        return Interval(report.stage, start, start + duration, _RANKS.get(report.stage, _STAGE_RANK), parts, first)
