"""From two rankings to the pairs to try."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from services.platform.fleet import WorkerRecord
from services.router.policies.base import Scored


@dataclass(frozen=True, slots=True)
class Pair:
    """prefill None: the decode worker computes the prompt itself."""

    prefill: WorkerRecord | None
    decode: WorkerRecord
    score: float


def pairs(prefill: Sequence[Scored], decode: Sequence[Scored], limit: int) -> list[Pair]:
    """Best first by the sum of both scores, then by the ranks. Only workers whose KV pages mean the same to both:
    equal fingerprints, and a worker that doesn't say its fingerprint matches none.
    """
    matching = [
        (-(first.score + second.score), i + j, i, Pair(first.worker, second.worker, first.score + second.score))
        for i, first in enumerate(prefill)
        for j, second in enumerate(decode)
        if first.worker.fingerprint and first.worker.fingerprint == second.worker.fingerprint
    ]
    matching.sort(key=lambda entry: entry[:3])
    return [pair for *_, pair in matching[:limit]]


def alone(decode: Sequence[Scored], limit: int) -> list[Pair]:
    """Decode workers without a prefill worker, best first."""
    return [Pair(None, one.worker, one.score) for one in decode[:limit]]
