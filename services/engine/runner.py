"""What computes a step: the one interface between the engine's core and a model.

The core owns block ids, sequences and time; a runner owns the KV memory behind the block ids and turns slices of
sequences into sampled tokens. It keeps nothing about a sequence between calls. It is called from one thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from services.engine.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class KvLayout:
    """How KV lies in a block as it leaves this machine; both ends of a hand-off must agree on all of it."""

    block_size: int
    """Tokens a block holds."""
    bytes_per_block: int
    """Bytes of a full block; every token takes the same share of it."""
    dtype: str
    description: str
    """Axis order and sizes in words, part of the fingerprint."""

    def payload_bytes(self, tokens: int) -> int:
        """Bytes of the first `tokens` tokens of a block."""
        return self.bytes_per_block // self.block_size * tokens


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """What the rest of the worker needs to know of a model."""

    name: str
    architecture: str
    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    weights_digest: str
    """Hex digest of the weights' source: equal digests and an equal KvLayout mean exchangeable KV."""


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """Asks for one token after the slice's last token."""

    params: SamplingParams
    seed: tuple[int, int]
    """(request seed, choice index)."""
    position: int
    """Index of the output token to be sampled; 0 is the first."""
    prompt_ids: Sequence[int]
    output_ids: Sequence[int]
    banned_ids: Sequence[int] = ()
    """Tokens that must not be chosen, such as EOS while `min_tokens` isn't reached."""


@dataclass(frozen=True, slots=True)
class SequenceSlice:
    """Tokens of one sequence to run in this step: a chunk of its prompt, or the one token decoded last.

    Token `token_ids[i]` stands at position `start + i`; the KV of positions below `start` lies in the blocks already.
    `block_ids` covers positions 0 up to at least `start + len(token_ids)`, in order. Two slices of one step never write
    the same block.
    """

    sequence_id: str
    token_ids: Sequence[int]
    start: int
    block_ids: Sequence[int]
    sample: SampleRequest | None = None


@dataclass(frozen=True, slots=True)
class Sampled:
    """One chosen token; `top` holds the most likely alternatives, best first, as (token id, logprob)."""

    token_id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class Runner(Protocol):
    """A model with its KV memory."""

    @property
    def layout(self) -> KvLayout: ...

    @property
    def model(self) -> ModelDescription: ...

    @property
    def num_blocks(self) -> int:
        """Blocks in the pool; ids are 0 to num_blocks - 1."""
        ...

    def execute(self, batch: Sequence[SequenceSlice]) -> list[Sampled | Exception | None]:
        """Run one step; the answer has one entry a slice, in order.

        None where no sample was asked for; an Exception fails that sequence alone. Raises only when the whole step
        is lost.
        """
        ...

    def read_block(self, block_id: int, tokens: int) -> bytes:
        """The KV of the block's first `tokens` tokens, contiguous in the layout's axis order."""
        ...

    def write_block(self, block_id: int, tokens: int, payload: memoryview) -> None:
        """Inverse of `read_block`; ValueError when the payload's length isn't that of `tokens` tokens."""
        ...

    def copy_block(self, source: int, target: int) -> None:
        """Copy a whole block inside the pool, for a sequence that goes on alone from a shared one."""
        ...

    def close(self) -> None:
        """Free the memory; the runner is unusable afterwards."""
        ...
