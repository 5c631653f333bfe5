"""What comes out of the core."""

from __future__ import annotations

from dataclasses import dataclass, field

from services.engine.block_pool import PoolUsage
from services.engine.kv_changes import KvChange
from services.engine.runner import Sampled
from services.engine.timing import SequenceTiming
from services.kvcache.page import Page
from services.platform.failures import Failure

ABORTED = "abort"


@dataclass(frozen=True, slots=True)
class Emission:
    """What happened to one sequence in a step: a token, an end (with or without a token), or a failure."""

    sequence_id: str
    sampled: Sampled | None
    finish: str
    gap_ns: int
    """Since its token before; 0 for the first."""
    cached_tokens: int
    timing: SequenceTiming | None = None
    """Set with `finish` or `failure`."""
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """How busy the engine is."""

    running: int = 0
    waiting: int = 0
    waiting_tokens: int = 0
    """Prompt tokens that are still to be computed."""
    usage: PoolUsage = field(default_factory=lambda: PoolUsage(0, 0, 0))
    preemptions: int = 0
    """Since the engine's start."""
    arrivals: int = 0
    """Requests since the engine's start."""


@dataclass(frozen=True, slots=True)
class Step:
    """One run of the model."""

    number: int
    duration_ns: int
    prefill_tokens: int
    decode_tokens: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """Everything that came out of the core since the last outcome."""

    emissions: list[Emission]
    pages: list[tuple[str, Page]]
    """(sequence id, page of its prompt) for sequences that asked for them."""
    changes: list[KvChange]
    load: Load
    step: Step | None
    admitted: list[tuple[int, int]]
    """(prompt tokens, cached tokens) of each sequence that was admitted for the first time."""
