"""Each worker in turn: the baseline that knows nothing."""

from __future__ import annotations

from collections.abc import Sequence

from services.router.policies.base import RouteInputs, Scored, WorkerView


class RoundRobin:
    """Score: 0 for the worker whose turn it is, -1 for the next one, and so on. Order: by worker id."""

    name = "round_robin"

    def __init__(self) -> None:
        self._turn = 0

    def rank(self, request: RouteInputs, workers: Sequence[WorkerView]) -> list[Scored]:
        order = sorted(workers, key=lambda view: view.worker.worker_id)
        if not order:
            return []
        first = self._turn % len(order)
        self._turn += 1
        order = order[first:] + order[:first]
        return [Scored(view, float(-behind), (("turns_until", float(behind)),)) for behind, view in enumerate(order)]
