"""What the worker's prefix cache holds, as a numbered stream that a router can follow.

A subscriber gets a snapshot, then every change. Numbers start at 1 in each life of the process and have no gaps; a
subscriber that falls too far behind gets a new snapshot instead of delaying the engine.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass

from services.engine.core import Load
from services.engine.kv_changes import CacheCleared, KvChange, PageRemoved, PageStored
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
        self._subscribers: set[_Subscriber] = set()
        self._sequence = 0
        self._load = Load()
        self.publish((CacheCleared(),), self._load)  # number 1: a restarted worker is known to hold nothing

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

    async def subscribe(self, start: int = 0) -> AsyncIterator[KvBatch]:
        """Batches from number `start` on if they are still known, else a snapshot and what follows. Never ends."""
        subscriber = _Subscriber(self._max_behind)
        self._subscribers.add(subscriber)
        try:
            last, told, told_at = 0, self._load, time.monotonic()
            for batch in self._from(start):
                last, told, told_at = batch.sequence, batch.load, time.monotonic()
                yield batch
            while True:
                following = await subscriber.next(LOAD_S)
                if subscriber.overflowed:
                    subscriber.restart()
                    following = [self._snapshot()]
                elif not following and (self._load != told or time.monotonic() - told_at >= HEARTBEAT_S):
                    following = [KvBatch(last, time.time(), (), self._load, load_only=True)]
                for batch in following:
                    last, told, told_at = batch.sequence, batch.load, time.monotonic()
                    yield batch
        finally:
            self._subscribers.discard(subscriber)

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


class _Subscriber:
    def __init__(self, max_behind: int) -> None:
        self._max_behind = max_behind
        self._batches: list[KvBatch] = []
        self._ready = asyncio.Event()
        self.overflowed = False

    def put(self, batch: KvBatch) -> None:
        if len(self._batches) < self._max_behind and not self.overflowed:
            self._batches.append(batch)
        else:
            self.overflowed = True
        self._ready.set()

    def restart(self) -> None:
        """Forget what waits: a snapshot is on its way."""
        self._batches.clear()
        self._ready.clear()
        self.overflowed = False

    async def next(self, timeout_s: float) -> list[KvBatch]:
        """What waits, oldest first; empty after `timeout_s` seconds without anything."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._ready.wait()
        except TimeoutError:
            return []
        self._ready.clear()
        batches, self._batches = self._batches, []
        return batches
