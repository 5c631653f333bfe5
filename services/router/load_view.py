"""How busy each worker is: its last report, plus what was sent to it since."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from services.platform.fleet import WorkerRecord
from tokenpath.v1.worker_pb2 import LoadState


@dataclass(frozen=True, slots=True)
class Load:
    """sequences: running and waiting; tokens: held for them, or waiting to be computed."""

    sequences: int = 0
    tokens: int = 0


@dataclass(slots=True)
class _Known:
    reported: Load = field(default_factory=Load)
    arrivals: int = 0
    reachable: bool = True
    bookings: deque[tuple[float, int]] = field(default_factory=deque)  # (when it expires, tokens), oldest first


class LoadView:
    """A report comes after the work has arrived, so several requests routed within one step would all see the same
    idle worker. Each choice is therefore booked at once. A report of k new arrivals, of which some may be over already,
    confirms the k oldest bookings; a booking that nothing confirms expires after `booking_ttl_s`.
    """

    def __init__(self, booking_ttl_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._ttl_s = booking_ttl_s
        self._clock = clock
        self._known: dict[str, _Known] = {}

    def report(self, worker: WorkerRecord, state: LoadState) -> None:
        known = self._known.setdefault(worker.worker_id, _Known())
        for _ in range(min(state.arrivals - known.arrivals, len(known.bookings))):
            known.bookings.popleft()
        known.arrivals = state.arrivals
        tokens = state.kv_blocks_used * worker.block_size + state.waiting_tokens
        known.reported = Load(state.running + state.waiting, tokens)
        known.reachable = True

    def lost(self, worker: WorkerRecord) -> None:
        """Its stream broke: it may be dead although its lease lives on for some seconds."""
        known = self._known.setdefault(worker.worker_id, _Known())
        known.reachable = False
        known.reported = Load()

    def forget(self, worker: WorkerRecord) -> None:
        self._known.pop(worker.worker_id, None)

    def book(self, worker_id: str, tokens: int) -> None:
        """A request of `tokens` was just sent to the worker."""
        known = self._known.setdefault(worker_id, _Known())
        known.bookings.append((self._clock() + self._ttl_s, tokens))

    def reachable(self, worker_id: str) -> bool:
        """False while connections to it fail. A worker not yet tried counts as reachable."""
        known = self._known.get(worker_id)
        return known is None or known.reachable

    def of(self, worker_id: str) -> Load:
        known = self._known.get(worker_id)
        if known is None:
            return Load()
        now = self._clock()
        while known.bookings and known.bookings[0][0] <= now:
            known.bookings.popleft()
        booked = sum(tokens for _, tokens in known.bookings)
        return Load(known.reported.sequences + len(known.bookings), known.reported.tokens + booked)
