"""Continuous batching: which sequences run in the next step, and with how many tokens."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from services.engine.block_pool import BlockPool, NoFreeBlocks
from services.engine.sequence import Sequence

OLDEST_PREFILL_SHARE = 0.75
"""Share of a step's prompt tokens that the oldest prompt gets while others wait behind it, so that a short prompt
isn't held up by the whole of a long one."""


@dataclass(frozen=True, slots=True)
class BatchLimits:
    max_num_seqs: int
    """Sequences in the batch."""
    step_tokens: int
    """Tokens a step runs, decodes included."""

    def __post_init__(self) -> None:
        if not 1 <= self.max_num_seqs <= self.step_tokens:
            raise ValueError(f"need 1 <= max_num_seqs ({self.max_num_seqs}) <= step_tokens ({self.step_tokens})")


@dataclass(frozen=True, slots=True)
class Part:
    """One sequence's share of a step."""

    sequence: Sequence
    tokens: int
    prefill: bool


class Batcher:
    """The waiting queue (first come, first served) and the running batch (oldest first)."""

    def __init__(self, pool: BlockPool, limits: BatchLimits, on_admit: Callable[[Sequence], None]) -> None:
        self._pool = pool
        self._limits = limits
        self._on_admit = on_admit
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.preemptions = 0

    def plan(self, now: float) -> list[Part]:
        """The next step: every decode that is due, then chunks of prompts within what is left of the token budget.

        May preempt the youngest sequences to make room for older ones. `now` is time.monotonic() seconds.
        """
        parts = self._decodes(now)
        budget = self._limits.step_tokens - len(parts)
        if budget > 0:
            admitted = self._admit()
            prompts = [sequence for sequence in self.running if sequence.remaining > 1]
            # A prompt that is cached or one token long has just its last token to run.
            prompts += [sequence for sequence in admitted if sequence.remaining == 1 and sequence.due_at <= now]
            parts += [Part(sequence, tokens, sequence.prefilling) for sequence, tokens in _chunks(prompts, budget)]
        return parts

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it is, and free its blocks."""
        if sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        self._pool.release(sequence.forget_blocks())

    def _decodes(self, now: float) -> list[Part]:
        parts: list[Part] = []
        for sequence in tuple(self.running):
            if sequence.remaining != 1 or sequence.due_at > now:
                continue
            # A sequence that an older one has just preempted has no blocks and much to recompute: it's not here.
            if self._grow(sequence):
                parts.append(Part(sequence, 1, sequence.prefilling))
        return parts

    def _grow(self, sequence: Sequence) -> bool:
        """Give the newest token its slot; False when the sequence had to give way itself."""
        while len(sequence.block_ids) < sequence.blocks_needed():
            try:
                sequence.block_ids += self._pool.take(1)
            except NoFreeBlocks:
                victim = self.running[-1]
                self._preempt(victim)
                if victim is sequence:
                    return False
        return True

    def _preempt(self, victim: Sequence) -> None:
        self.running.pop()
        self._pool.release(victim.forget_blocks())
        victim.clock.preemptions += 1
        self.preemptions += 1
        self.waiting.appendleft(victim)

    def _admit(self) -> list[Sequence]:
        admitted: list[Sequence] = []
        while self.waiting and len(self.running) < self._limits.max_num_seqs:
            sequence = self.waiting[0]
            # At least the last token must run, to have something to sample from.
            usable = (len(sequence.token_ids) - 1) // sequence.block_size
            matched = self._pool.match(sequence.update_names()[:usable])
            missing = sequence.blocks_needed() - len(matched)
            # A block of headroom for each running sequence: what is admitted now isn't preempted at once again.
            if missing + len(self.running) > self._pool.available - self._pool.unheld(matched):
                break
            self.waiting.popleft()
            self._pool.hold(matched)
            sequence.block_ids = matched + self._pool.take(missing)
            sequence.named = len(matched)
            sequence.computed = len(matched) * sequence.block_size
            self.running.append(sequence)
            self._on_admit(sequence)
            admitted.append(sequence)
        return admitted


def _chunks(prompts: list[Sequence], budget: int) -> Iterator[tuple[Sequence, int]]:
    """Share `budget` tokens among prompts, oldest first; those behind the oldest may use what it leaves them."""
    if not prompts:
        return
    oldest, *others = prompts
    behind = sum(sequence.remaining for sequence in others)
    kept = min(behind, budget - max(1, int(budget * OLDEST_PREFILL_SHARE)))
    first = min(oldest.remaining, budget - kept)
    yield oldest, first
    left = budget - first
    for sequence in others:
        tokens = min(sequence.remaining, left)
        if tokens == 0:
            return
        left -= tokens
        yield sequence, tokens
