"""What the worker's prefix cache holds, as a numbered stream that a router can follow.

A subscriber gets a snapshot, then every change. Numbers start at 1 in each life of the process and have no gaps; a
subscriber that falls too far behind gets a new snapshot instead of delaying the engine.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from services.engine.kv_changes import CacheCleared, KvChange, PageRemoved, PageStored
from services.engine.outcome import Load
from services.kvcache.names import PageName

HISTORY = 1024
"""Batches kept for subscribers that come back."""

MAX_BEHIND = 256
"""Batches that wait for one subscriber before it's given a snapshot instead."""

LOAD_S = 0.25
HEARTBEAT_S = 1.0
"""Without page changes, a changed load is told after LOAD_S and an unchanged one after HEARTBEAT_S."""


@dataclass(frozen=True, slots=True)
class KvBatch:
    """Changes in order, and the engine's load when the batch was made."""

    sequence: int
    unix_s: float
    changes: tuple[KvChange, ...]
    load: Load
    snapshot: bool = False
    """`changes` is the whole state at `sequence`: a clear, then every page, parents first."""
    load_only: bool = False
    """Repeats the stream's last number and changes no page."""


class KvEventLog:
    """Lives on the event loop."""

    def __init__(self, history: int = HISTORY, max_behind: int = MAX_BEHIND) -> None:
        self._pages: dict[PageName, PageStored] = {}
        self._history: deque[KvBatch] = deque(maxlen=history)
        self._max_behind = max_behind
        self._subscribers: set[KvSubscription] = set()
        self._sequence = 0
        self._closed = False
        self._load = Load()
        self.publish((CacheCleared(),), self._load)  # number 1: a restarted worker is known to hold nothing

    def close(self) -> None:
        """End every subscription, so that open streams don't hold up a shutdown."""
        self._closed = True
        for subscription in self._subscribers:
            subscription.close()

    def publish(self, changes: Iterable[KvChange], load: Load) -> None:
        """Number and pass on what changed; without changes, only remember the load."""
        self._load = load
        changes = tuple(changes)
        if not changes:
            return
        for change in changes:
            self._apply(change)
        self._sequence += 1
        batch = KvBatch(self._sequence, time.time(), changes, load)
        self._history.append(batch)
        for subscriber in self._subscribers:
            subscriber.put(batch)

    def leading(self, names: Iterable[PageName]) -> int:
        """How many of the first of `names` the cache held when the engine last said so; it may have evicted some."""
        return sum(1 for _ in itertools.takewhile(self._pages.__contains__, names))

    @contextmanager
    def subscribe(self, start: int = 0) -> Iterator[KvSubscription]:
        """Batches from number `start` on if they are still known, else a snapshot and what follows."""
        subscription = KvSubscription(self._from(start), self._max_behind, self._snapshot, lambda: self._load)
        self._subscribers.add(subscription)
        if self._closed:
            subscription.close()
        try:
            yield subscription
        finally:
            self._subscribers.discard(subscription)

    def _from(self, start: int) -> list[KvBatch]:
        if start and self._history[0].sequence <= start <= self._sequence + 1:
            return [batch for batch in self._history if batch.sequence >= start]
        return [self._snapshot()]

    def _snapshot(self) -> KvBatch:
        changes: tuple[KvChange, ...] = (CacheCleared(), *self._pages.values())
        return KvBatch(self._sequence, time.time(), changes, self._load, snapshot=True)

    def _apply(self, change: KvChange) -> None:
        # A page is stored after its parent and removed before it, so insertion order has parents first.
        if isinstance(change, PageStored):
            self._pages[change.name] = change
        elif isinstance(change, PageRemoved):
            self._pages.pop(change.name, None)
        else:
            self._pages.clear()


class KvSubscription:
    """One subscriber's place in the stream."""

    def __init__(
        self,
        first: list[KvBatch],
        max_behind: int,
        snapshot: Callable[[], KvBatch],
        current_load: Callable[[], Load],
    ) -> None:
        self._waiting = first
        self._max_behind = max_behind
        self._snapshot = snapshot
        self._current_load = current_load
        self._overflowed = False
        self._closed = False
        self._ready = asyncio.Event()
        if first:
            self._ready.set()
        self._last = 0
        self._told = Load()
        self._told_at = time.monotonic()

    def put(self, batch: KvBatch) -> None:
        """Take a batch, or note that this subscriber is too slow for it."""
        if len(self._waiting) < self._max_behind and not self._overflowed:
            self._waiting.append(batch)
        else:
            self._overflowed = True
        self._ready.set()

    def close(self) -> None:
        """`next` has nothing more to say."""
        self._closed = True
        self._ready.set()

    async def next(self) -> list[KvBatch]:
        """The next batches, oldest first; without changes the load is told now and then. Empty: the log is closed."""
        batches: list[KvBatch] = []
        while not batches:
            if self._closed:
                return []
            batches = await self._wait() or self._load_record()
        self._last, self._told, self._told_at = batches[-1].sequence, batches[-1].load, time.monotonic()
        return batches

    async def _wait(self) -> list[KvBatch]:
        try:
            async with asyncio.timeout(LOAD_S):
                await self._ready.wait()
        except TimeoutError:
            return []
        self._ready.clear()
        batches, self._waiting = self._waiting, []
        if self._overflowed:
            self._overflowed = False
            return [self._snapshot()]
        return batches

    def _load_record(self) -> list[KvBatch]:
        load = self._current_load()
        if load == self._told and time.monotonic() - self._told_at < HEARTBEAT_S:
            return []
        return [KvBatch(self._last, time.time(), (), load, load_only=True)]
