"""The feed of engine steps, and of the load they leave, for whoever watches the worker."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from services.engine.outcome import Load, Step

BATCH_S = 0.05
"""Steps of this long travel together."""

MAX_BEHIND = 4096
"""Steps kept for a slow watcher; it loses the oldest and sees that by their numbers."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    step: Step | None
    """None: the load changed without one, because sequences were aborted."""
    load: Load
    """After the step."""


class StepFeed:
    """Gives every step to every watcher. Lives on the event loop; a slow watcher delays nobody."""

    def __init__(self) -> None:
        self._watchers: set[StepWatcher] = set()
        self._closed = False

    def close(self) -> None:
        """End every watch, so that open streams don't hold up a shutdown."""
        self._closed = True
        for watcher in self._watchers:
            watcher.close()

    def publish(self, record: StepRecord) -> None:
        for watcher in self._watchers:
            watcher.put(record)

    @contextmanager
    def watch(self) -> Iterator[StepWatcher]:
        """Every step from now on, until the block ends."""
        watcher = StepWatcher()
        self._watchers.add(watcher)
        if self._closed:
            watcher.close()
        try:
            yield watcher
        finally:
            self._watchers.discard(watcher)


class StepWatcher:
    """One who watches."""

    def __init__(self) -> None:
        self._records: deque[StepRecord] = deque(maxlen=MAX_BEHIND)
        self._ready = asyncio.Event()
        self._closed = False

    def close(self) -> None:
        self._closed = True
        self._ready.set()

    def put(self, record: StepRecord) -> None:
        self._records.append(record)
        self._ready.set()

    async def next(self) -> list[StepRecord]:
        """Steps that have not been seen yet, oldest first, collected for BATCH_S; waits until there is one.

        Empty when the feed is closed.
        """
        await self._ready.wait()
        if not self._closed:
            await asyncio.sleep(BATCH_S)  # what comes meanwhile goes into the same message
            self._ready.clear()
        records = list(self._records)
        self._records.clear()
        return records
