"""What a policy sees and what it answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Protocol

from services.platform.fleet import WorkerRecord


@dataclass(frozen=True, slots=True)
class RouteInputs:
    """One request, as far as routing cares."""

    request_id: str
    prompt_tokens: int
    max_tokens: int


@dataclass(frozen=True, slots=True)
class WorkerView:
    """One worker as the router believes it to be now, work it was sent a moment ago included."""

    worker: WorkerRecord
    cached_tokens: int = 0  # longest prefix of this prompt that it holds
    sequences: int = 0  # running and waiting
    tokens: int = 0  # held for running sequences, or waiting to be computed

    @property
    def load(self) -> float:
        """How full the worker is by whichever runs out first, tokens or sequences: 0 idle, 1 full, more: it queues."""
        capacity = self.worker.kv_blocks * self.worker.block_size
        return max(self.tokens / max(1, capacity), self.sequences / max(1, self.worker.max_num_seqs))


@dataclass(frozen=True, slots=True)
class Scored:
    """A worker with its score (higher is better) and every term of it, for the trace."""

    view: WorkerView
    score: float
    terms: tuple[tuple[str, float], ...]

    @property
    def worker(self) -> WorkerRecord:
        return self.view.worker


class Policy(Protocol):
    """Ranks the workers of one role. One object a role, so it may keep state between requests."""

    @property
    def name(self) -> str: ...

    def rank(self, request: RouteInputs, workers: Sequence[WorkerView]) -> list[Scored]:
        """All `workers`, best first. Must not block and must not change what it is given."""
        ...


def lot(request_id: str, worker_id: str) -> int:
    """Breaks ties: the same for the same request, spread evenly over workers from request to request."""
    return int.from_bytes(blake2b(f"{request_id}/{worker_id}".encode(), digest_size=8).digest(), "big")
