"""Where one sequence's time in the engine went."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SequenceTiming:
    """Durations in nanoseconds of the engine's monotonic clock; queue, prefill, decode and wait add up to the total."""

    queue_ns: int
    """From submission until the first admission to the batch."""
    prefill_ns: int
    """Steps that computed its prompt (again, after a preemption)."""
    decode_ns: int
    """Steps that computed one new token of it."""
    total_ns: int
    first_token_ns: int
    """From submission to its first token; 0 when there was none."""
    itl_mean_ns: int
    itl_max_ns: int
    """Between two of its tokens; 0 when there were fewer than two."""
    steps: int
    batch_min: int
    batch_mean: float
    batch_max: int
    """Sequences in the steps that it took part in; 0 when there was no step."""
    tokens: int
    """Tokens that it produced here."""
    preemptions: int

    @property
    def wait_ns(self) -> int:
        """Admitted, but not in a step: not yet due, preempted, or between two steps."""
        return max(0, self.total_ns - self.queue_ns - self.prefill_ns - self.decode_ns)


class SequenceClock:
    """Collects a SequenceTiming step by step. All instants are nanoseconds of one monotonic clock."""

    __slots__ = (
        "_admitted_ns",
        "_arrived_ns",
        "_batch_max",
        "_batch_min",
        "_batch_sum",
        "_decode_ns",
        "_first_token_ns",
        "_itl_max_ns",
        "_last_token_ns",
        "_prefill_ns",
        "_steps",
        "_tokens",
        "preemptions",
    )

    def __init__(self, arrived_ns: int) -> None:
        self._arrived_ns = arrived_ns
        self._admitted_ns = 0
        self._prefill_ns = 0
        self._decode_ns = 0
        self._first_token_ns = 0
        self._last_token_ns = 0
        self._itl_max_ns = 0
        self._steps = 0
        self._batch_sum = 0
        self._batch_min = 0
        self._batch_max = 0
        self._tokens = 0
        self.preemptions = 0

    def admitted(self, at_ns: int) -> None:
        """The first call counts: a preempted sequence waits, it doesn't queue again."""
        if self._admitted_ns == 0:
            self._admitted_ns = at_ns

    def took_part(self, duration_ns: int, batch: int, *, prefill: bool) -> None:
        if prefill:
            self._prefill_ns += duration_ns
        else:
            self._decode_ns += duration_ns
        self._steps += 1
        self._batch_sum += batch
        self._batch_max = max(self._batch_max, batch)
        self._batch_min = min(self._batch_min, batch) if self._batch_min else batch

    def emitted(self, at_ns: int) -> int:
        """Count a token; returns the gap since the one before, 0 for the first."""
        gap = 0
        if self._tokens == 0:
            self._first_token_ns = at_ns
        else:
            gap = at_ns - self._last_token_ns
            self._itl_max_ns = max(self._itl_max_ns, gap)
        self._last_token_ns = at_ns
        self._tokens += 1
        return gap

    def ended(self, at_ns: int) -> SequenceTiming:
        gaps = self._tokens - 1
        return SequenceTiming(
            queue_ns=(self._admitted_ns or at_ns) - self._arrived_ns,
            prefill_ns=self._prefill_ns,
            decode_ns=self._decode_ns,
            total_ns=at_ns - self._arrived_ns,
            first_token_ns=self._first_token_ns - self._arrived_ns if self._tokens else 0,
            itl_mean_ns=(self._last_token_ns - self._first_token_ns) // gaps if gaps > 0 else 0,
            itl_max_ns=self._itl_max_ns,
            steps=self._steps,
            batch_min=self._batch_min,
            batch_mean=self._batch_sum / self._steps if self._steps else 0.0,
            batch_max=self._batch_max,
            tokens=self._tokens,
            preemptions=self.preemptions,
        )
