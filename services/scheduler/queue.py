"""The one waiting line: higher priority first, then first come, first served; bounded."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class QueueFull(Exception):
    """The line has no room for one more."""


class WaitingQueue(Generic[T]):
    """An item waits at most once. Positions count from 0, the next to go."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._arrivals = 0
        self._keys: list[tuple[int, int]] = []  # (-priority, arrival), sorted
        self._items: dict[tuple[int, int], T] = {}
        self._key_of: dict[T, tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[T]:
        """In order; joins and leaves during the iteration are not seen."""
        return iter([self._items[key] for key in self._keys])

    @property
    def full(self) -> bool:
        return len(self._keys) >= self._limit

    def join(self, item: T, priority: int) -> None:
        """QueueFull: `limit` are waiting already."""
        if self.full:
            raise QueueFull
        self._arrivals += 1
        key = (-priority, self._arrivals)
        insort(self._keys, key)
        self._items[key] = item
        self._key_of[item] = key

    def leave(self, item: T) -> bool:
        """False: it was not waiting."""
        key = self._key_of.pop(item, None)
        if key is None:
            return False
        del self._keys[bisect_left(self._keys, key)]
        del self._items[key]
        return True

    def position(self, item: T) -> int | None:
        """None: it is not waiting."""
        key = self._key_of.get(item)
        return None if key is None else bisect_left(self._keys, key)
