"""Go where the prompt's prefix is cached, unless that worker is so busy that computing it elsewhere is better."""

from __future__ import annotations

from collections.abc import Sequence

from services.router.policies.base import RouteInputs, Scored, WorkerView, lot


class PrefixMinusLoad:
    """Score: (cached share of the prompt) - load_weight * (load), both in 0 .. 1 (load may pass 1 when it queues).

    Without the load term every request that shares a system prompt would go to one worker
    (an imbalance of N with N workers), so load_weight 0 is only good for showing that.
    """

    name = "prefix_minus_load"

    def __init__(self, load_weight: float) -> None:
        self._load_weight = load_weight

    def rank(self, request: RouteInputs, workers: Sequence[WorkerView]) -> list[Scored]:
        scored = [self._score(request, view) for view in workers]
        return sorted(scored, key=lambda one: (-one.score, lot(request.request_id, one.worker.worker_id)))

    def _score(self, request: RouteInputs, view: WorkerView) -> Scored:
        prefix = view.cached_tokens / max(1, request.prompt_tokens)
        load = self._load_weight * view.load
        return Scored(view, prefix - load, (("prefix", prefix), ("load", -load)))
