"""One routing decision: who could serve, who should, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import grpc

from services.platform.failures import Failure
from services.platform.fleet import WorkerRecord
from services.router.load_view import LoadView
from services.router.pairing import Pair, alone, pairs
from services.router.policies.base import Policy, RouteInputs, Scored, WorkerView
from services.router.prefix_index import PrefixIndex
from services.router.prefix_lookup import cached_tokens


class Mode(StrEnum):
    DISAGGREGATED = "disaggregated"
    AGGREGATED = "aggregated"


@dataclass(frozen=True, slots=True)
class Ask:
    """A request to place. token_ids: the whole prompt; mode None: the configured one."""

    inputs: RouteInputs
    token_ids: Sequence[int]
    cache_salt: str
    mode: Mode | None
    exclude: frozenset[str]


@dataclass(frozen=True, slots=True)
class Decision:
    candidates: list[Pair]  # best first, never empty
    mode: Mode
    fallback: str  # why mode is not the one that was asked for; "" when it is
    scores: list[Scored]  # every worker considered
    unreachable: int  # workers left out because connections to them fail


class Decider:
    """Joins what is known of the fleet, of its caches and of its load, and lets the policies choose."""

    def __init__(
        self,
        fleet: Callable[[], Mapping[str, WorkerRecord]],
        index: PrefixIndex,
        loads: LoadView,
        policies: Mapping[str, Policy],
        *,
        default_mode: Mode,
        max_candidates: int,
        max_hashed_blocks: int,
    ) -> None:
        """policies: one for the role "prefill" and one for "decode"."""
        self._fleet = fleet
        self._index = index
        self._loads = loads
        self._policies = policies
        self._default_mode = default_mode
        self._max_candidates = max_candidates
        self._max_hashed_blocks = max_hashed_blocks

    async def decide(self, ask: Ask) -> Decision:
        """Failure UNAVAILABLE: no worker can serve now; INVALID_ARGUMENT: the prompt is too long for every worker."""
        present = [worker for worker in self._fleet().values() if worker.worker_id not in ask.exclude]
        decode, decode_left_out = self._reachable(worker for worker in present if worker.role == "decode")
        if not decode:
            raise _no_decode_worker(bool(ask.exclude))
        decode = _long_enough(decode, ask.inputs.prompt_tokens)
        wanted = ask.mode or self._default_mode
        prefill: list[WorkerRecord] = []
        prefill_left_out = 0
        if wanted is Mode.DISAGGREGATED:
            prefill, prefill_left_out = self._reachable(worker for worker in present if worker.role == "prefill")
        held = await cached_tokens(
            self._index, ask.token_ids, ask.cache_salt, [*prefill, *decode], self._max_hashed_blocks
        )
        decode_scores = self._rank("decode", ask, decode, held)
        prefill_scores = self._rank("prefill", ask, prefill, held)
        candidates = pairs(prefill_scores, decode_scores, self._max_candidates)
        mode, fallback = wanted, ""
        if not candidates:
            if wanted is Mode.DISAGGREGATED:
                mode, fallback = Mode.AGGREGATED, "no_matching_prefill" if prefill else "no_prefill"
            candidates = alone(decode_scores, self._max_candidates)
        self._book(candidates[0], ask.inputs.prompt_tokens)
        return Decision(candidates, mode, fallback, prefill_scores + decode_scores, decode_left_out + prefill_left_out)

    def _reachable(self, workers: Iterable[WorkerRecord]) -> tuple[list[WorkerRecord], int]:
        """Those that answer, and how many were left out; all of them when none answers, for then it is our view
        that is wrong as likely as theirs."""
        role = list(workers)
        reachable = [worker for worker in role if self._loads.reachable(worker.worker_id)]
        return (reachable, len(role) - len(reachable)) if reachable else (role, 0)

    def _rank(self, role: str, ask: Ask, workers: Iterable[WorkerRecord], held: Mapping[str, int]) -> list[Scored]:
        views = []
        for worker in workers:
            load = self._loads.of(worker.worker_id)
            views.append(WorkerView(worker, held.get(worker.worker_id, 0), load.sequences, load.tokens))
        return self._policies[role].rank(ask.inputs, views)

    def _book(self, pair: Pair, tokens: int) -> None:
        for worker in (pair.prefill, pair.decode):
            if worker is not None:
                self._loads.book(worker.worker_id, tokens)


def _no_decode_worker(some_excluded: bool) -> Failure:
    message = (
        "no other decode worker can take over this request"
        if some_excluded
        else "no decode worker is alive; start one, or wait until it has registered"
    )
    return Failure(grpc.StatusCode.UNAVAILABLE, message, code="no_worker_available", retry_after_ms=1000)


def _long_enough(workers: list[WorkerRecord], prompt_tokens: int) -> list[WorkerRecord]:
    fitting = [worker for worker in workers if not worker.max_model_len or prompt_tokens < worker.max_model_len]
    if not fitting:
        longest = max(worker.max_model_len for worker in workers)
        raise Failure(
            grpc.StatusCode.INVALID_ARGUMENT,
            f"the prompt has {prompt_tokens} tokens; the longest context served is {longest} tokens, output included",
            code="context_length_exceeded",
            param="messages",
        )
    return fitting
