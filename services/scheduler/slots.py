"""How many sequences each decode worker may run, and how many it was given."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from services.platform.fleet import WorkerRecord


@dataclass(slots=True)
class _Life:
    """One life of one worker. A new life starts empty; the old one's slots end with the streams that hold them."""

    capacity: int
    used: int = 0


@dataclass(frozen=True, slots=True)
class Slot:
    """`count` slots of one life of a worker; give it back exactly once."""

    worker_id: str
    count: int
    life: _Life


class Slots:
    """The decode workers' capacity (max_num_seqs) and what of it is granted."""

    def __init__(self) -> None:
        self._lives: dict[str, _Life] = {}
        self._generations: dict[str, str] = {}
        self.used = 0  # over all lives, those of workers that are gone included

    def add(self, worker: WorkerRecord) -> None:
        """A worker joined, or came back in a new life."""
        if self._generations.get(worker.worker_id) != worker.generation:
            self._generations[worker.worker_id] = worker.generation
            self._lives[worker.worker_id] = _Life(max(1, worker.max_num_seqs))

    def remove(self, worker_id: str) -> None:
        self._generations.pop(worker_id, None)
        self._lives.pop(worker_id, None)

    @property
    def total(self) -> int:
        return sum(life.capacity for life in self._lives.values())

    def usage(self) -> dict[str, tuple[int, int]]:
        """Worker id -> (used, capacity) of its present life."""
        return {worker_id: (life.used, life.capacity) for worker_id, life in self._lives.items()}

    def known(self, worker_ids: Iterable[str]) -> bool:
        """Whether any of them is alive."""
        return any(worker_id in self._lives for worker_id in worker_ids)

    def free(self) -> set[str]:
        """Workers with at least one free slot."""
        return {worker_id for worker_id, life in self._lives.items() if life.used < life.capacity}

    def take(self, worker_id: str, count: int) -> Slot | None:
        """`count` slots, or all of the worker's if it has fewer. None: too few are free, or it is not alive."""
        life = self._lives.get(worker_id)
        if life is None:
            return None
        count = min(max(1, count), life.capacity)
        if life.used + count > life.capacity:
            return None
        life.used += count
        self.used += count
        return Slot(worker_id, count, life)

    def give_back(self, slot: Slot) -> None:
        slot.life.used -= slot.count
        self.used -= slot.count
