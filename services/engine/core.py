"""The engine's core: sequences in, tokens out, one step at a time. Knows no model, no event loop and no network."""

from __future__ import annotations

import time
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import grpc

from services.engine.batching import Batcher, BatchLimits, Part
from services.engine.block_pool import BlockPool
from services.engine.outcome import ABORTED, Emission, Load, Outcome, Step
from services.engine.pacing import Pacer
from services.engine.pages import Pages
from services.engine.runner import Runner, Sampled
from services.engine.sequence import EngineRequest, Sequence, most_output
from services.kvcache.names import PageNamer
from services.platform.failures import Failure


@dataclass(frozen=True, slots=True)
class CoreSettings:
    """Built once a worker's model is known."""

    limits: BatchLimits
    max_model_len: int
    """Prompt and output of a sequence, in tokens."""
    fingerprint: str


class Core:
    """Owned by the compute thread: no method may be called from elsewhere."""

    def __init__(self, runner: Runner, settings: CoreSettings, pacer: Pacer | None = None) -> None:
        self._runner = runner
        self._settings = settings
        self._pacer = pacer
        self._pool = BlockPool(runner.num_blocks)
        self._pages = Pages(self._pool, runner)
        self._batcher = Batcher(self._pool, settings.limits, self._admitted)
        self._sequences: dict[str, Sequence] = {}
        self._namers: dict[str, PageNamer] = {}
        self._steps = 0
        self._arrivals = 0
        self._told = self.load
        self._emissions: list[Emission] = []
        self._admissions: list[tuple[int, int]] = []

    def add(self, request: EngineRequest, sequence_ids: SequenceOf[str]) -> None:
        """Queue one sequence a choice. A request that can't be served ends with a failure emission."""
        self._arrivals += 1
        now_ns = time.monotonic_ns()
        sequences: list[Sequence] = []
        try:
            for sequence_id, index in zip(sequence_ids, request.choices, strict=True):
                known = len(request.known_ids.get(index, ()))
                ends = self._pacer.begin(sequence_id, request.prompt_ids, index, known) if self._pacer else None
                most = most_output(request, self._settings.max_model_len)
                sequence = Sequence(
                    sequence_id,
                    request,
                    index,
                    namer=self._namer(request.salt),
                    eos_token_ids=self._runner.model.eos_token_ids,
                    max_output=most if ends is None else min(most, ends),
                    arrived_ns=now_ns,
                )
                sequence.due_at = self._pacer.due_at(sequence_id) if self._pacer else 0.0
                sequences.append(sequence)
        except Exception as error:  # whatever is wrong with one request must not end the engine for all
            failure = _failure_of(error)
            for sequence_id in sequence_ids:
                if self._pacer:
                    self._pacer.end(sequence_id)
                self._emissions.append(Emission(sequence_id, None, "", 0, 0, None, failure))
            return
        self._sequences.update((sequence.sequence_id, sequence) for sequence in sequences)
        going_on = [sequence for sequence in sequences if not self._over_already(sequence)]
        if going_on:
            leader, *leader.followers = going_on
            self._batcher.waiting.append(leader)

    def abort(self, sequence_id: str) -> None:
        """End a sequence and free its blocks; one that is over already is none of our business."""
        sequence = self._sequences.get(sequence_id)
        if sequence is not None:
            self._end(sequence, Emission(sequence_id, None, ABORTED, 0, max(0, sequence.cached_tokens)))

    def clear_cache(self) -> bool:
        """Forget all cached pages; False while a sequence holds blocks."""
        return self._pool.clear()

    @property
    def load(self) -> Load:
        batcher = self._batcher
        queued = (s.remaining for s in (*batcher.waiting, *batcher.running) if s.remaining > 1)
        return Load(
            running=len(batcher.running),
            waiting=len(batcher.waiting),
            waiting_tokens=sum(queued),
            usage=self._pool.usage,
            preemptions=batcher.preemptions,
            arrivals=self._arrivals,
        )

    def next_due(self) -> float | None:
        """time.monotonic() seconds at which a running sequence's next token is due; None when nothing runs."""
        return min((sequence.due_at for sequence in self._batcher.running), default=None)

    def step(self) -> Outcome | None:
        """Run the model once, if a sequence is due, and hand over what there is; None when there is nothing new.

        Raises what the runner raises for a step as a whole: the core is unusable then.
        """
        parts = self._batcher.plan(time.monotonic())
        step = self._execute(parts) if parts else None
        if not parts and self._batcher.waiting and not self._batcher.running:
            raise RuntimeError("no sequence runs, yet none can be admitted: the block pool has lost blocks")
        changes, load = self._pool.drain_changes(), self.load
        if step is None and not self._emissions and not changes and load == self._told:
            return None
        self._told = load
        outcome = Outcome(self._emissions, self._pages.drain_exports(), changes, load, step, self._admissions)
        self._emissions, self._admissions = [], []
        return outcome

    def _execute(self, parts: list[Part]) -> Step | None:
        started_ns = time.monotonic_ns()
        results = self._runner.execute([part.sequence.slice(part.tokens) for part in parts])
        ended_ns = time.monotonic_ns()
        duration_ns = ended_ns - started_ns
        prefilled = decoded = 0
        for part, result in zip(parts, results, strict=True):
            sequence = part.sequence
            sequence.clock.took_part(duration_ns, len(parts), prefill=part.prefill)
            sequence.computed += part.tokens
            if part.prefill:
                prefilled += part.tokens
            if isinstance(result, Exception):
                self._end(sequence, Emission(sequence.sequence_id, None, "", 0, 0, None, _failure_of(result)))
                continue
            if result is None and sequence.remaining == 0:
                sequence.computed -= 1  # not due yet: its last token runs again when it is
                sequence.due_at = self._due(sequence)
            self._pages.publish(sequence)
            if sequence.followers and sequence.computed >= len(sequence.prompt_ids):
                self._release_followers(sequence)
            if result is not None:
                decoded += 1
                self._emit(sequence, result, ended_ns)
        self._steps += 1
        return Step(self._steps, duration_ns, prefilled, decoded)

    def _emit(self, sequence: Sequence, sampled: Sampled, at_ns: int) -> None:
        finish = sequence.append(sampled)
        gap_ns = sequence.clock.emitted(at_ns)
        emission = Emission(sequence.sequence_id, sampled, finish, gap_ns, sequence.cached_tokens)
        if finish:
            self._end(sequence, emission)
        else:
            self._emissions.append(emission)
            sequence.due_at = self._due(sequence)

    def _end(self, sequence: Sequence, last: Emission) -> None:
        timing = sequence.clock.ended(time.monotonic_ns())
        del self._sequences[sequence.sequence_id]
        self._release_followers(sequence)
        self._batcher.remove(sequence)
        if self._pacer:
            self._pacer.end(sequence.sequence_id)
        self._emissions.append(
            Emission(last.sequence_id, last.sampled, last.finish, last.gap_ns, last.cached_tokens, timing, last.failure)
        )

    def _over_already(self, sequence: Sequence) -> bool:
        """Whether the tokens that it came with end it."""
        finish = sequence.finish_reason() if sequence.output_ids else ""
        if finish:
            self._end(sequence, Emission(sequence.sequence_id, None, finish, 0, 0))
        return bool(finish)

    def _due(self, sequence: Sequence) -> float:
        return self._pacer.due_at(sequence.sequence_id) if self._pacer else 0.0

    def _admitted(self, sequence: Sequence) -> None:
        sequence.clock.admitted(time.monotonic_ns())
        if sequence.cached_tokens < 0:
            sequence.cached_tokens = sequence.computed
            self._admissions.append((len(sequence.prompt_ids), sequence.computed))
        if sequence.request.pages:
            self._pages.take_in(sequence)

    def _release_followers(self, sequence: Sequence) -> None:
        """Queue the choices that waited for this one's prompt, ahead of requests that came later."""
        followers, sequence.followers = sequence.followers, []
        alive = [follower for follower in followers if follower.sequence_id in self._sequences]
        self._batcher.waiting.extendleft(reversed(alive))

    def _namer(self, salt: str) -> PageNamer:
        namer = self._namers.get(salt)
        if namer is None:
            if len(self._namers) >= 1024:  # tenants come and go
                self._namers.clear()
            namer = self._namers[salt] = PageNamer(self._settings.fingerprint, salt, self._runner.layout.block_size)
        return namer


def _failure_of(error: Exception) -> Failure:
    if isinstance(error, Failure):
        return error
    return Failure(grpc.StatusCode.INTERNAL, f"the engine could not compute this sequence ({type(error).__name__})")
