"""A runner without a model: it says what the prompt's script tells it to, when it tells it to.

It keeps KV as a model does, but a token's "KV" is its id and a check value. When a sequence begins to speak it reads
all of it back, so wrong pages make the sequence fail instead of changing its text unseen.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct

import grpc

from services.engine.runner import KvLayout, ModelDescription, Sampled, SampleRequest, SequenceSlice
from services.engine.script import Script, ScriptReader
from services.platform.failures import Failure

_TOKEN = Struct("<II")
_CHECK = 0x9E3779B1  # a token's check value is its id times this, modulo 2**32
_EMPTY = -1


@dataclass(slots=True)
class _Actor:
    """One sequence's script and where it stands."""

    script: Script
    due_at: float
    verified: bool = False


class ScriptedRunner:
    """Runner and Pacer in one. Used from one thread."""

    def __init__(
        self,
        reader: ScriptReader,
        *,
        name: str,
        vocab_size: int,
        max_model_len: int,
        eos_token_id: int,
        num_blocks: int,
        block_size: int = 16,
    ) -> None:
        self._reader = reader
        self._num_blocks = num_blocks
        self._block_size = block_size
        self._layout = KvLayout(block_size, _TOKEN.size * block_size, "script", "[token, (id, check)] uint32")
        self._model = ModelDescription(name, "scripted", vocab_size, max_model_len, (eos_token_id,), "scripted")
        self._memory = [[_EMPTY] * block_size for _ in range(num_blocks)]
        self._actors: dict[str, _Actor] = {}

    @property
    def layout(self) -> KvLayout:
        return self._layout

    @property
    def model(self) -> ModelDescription:
        return self._model

    @property
    def num_blocks(self) -> int:
        return self._num_blocks

    def begin(self, sequence_id: str, prompt_ids: Sequence[int], choice: int, produced: int) -> int | None:
        script = self._reader.read(prompt_ids, choice)
        delay = script.itl_s if produced else script.ttft_s
        self._actors[sequence_id] = _Actor(script, self._due(script, produced, time.monotonic(), delay))
        return len(script.token_ids) if script.finish == "length" else None

    def due_at(self, sequence_id: str) -> float:
        return self._actors[sequence_id].due_at

    def end(self, sequence_id: str) -> None:
        self._actors.pop(sequence_id, None)

    def execute(self, batch: Sequence[SequenceSlice]) -> list[Sampled | Exception | None]:
        """See Runner; None also where the sequence's next token isn't due yet."""
        now = time.monotonic()
        results: list[Sampled | Exception | None] = []
        for part in batch:
            self._store(part)
            results.append(None if part.sample is None else self._say(part, part.sample, now))
        return results

    def read_block(self, block_id: int, tokens: int) -> bytes:
        return b"".join(
            _TOKEN.pack(token_id, token_id * _CHECK & 0xFFFFFFFF) for token_id in self._memory[block_id][:tokens]
        )

    def write_block(self, block_id: int, tokens: int, payload: memoryview) -> None:
        if len(payload) != self._layout.payload_bytes(tokens):
            raise ValueError(f"{len(payload)} bytes for {tokens} tokens of {_TOKEN.size} bytes")
        block = self._memory[block_id]
        for place, (token_id, check) in enumerate(_TOKEN.iter_unpack(payload)):
            block[place] = token_id if token_id * _CHECK & 0xFFFFFFFF == check else _EMPTY

    def copy_block(self, source: int, target: int) -> None:
        self._memory[target] = list(self._memory[source])

    def close(self) -> None:
        self._memory.clear()

    def _store(self, part: SequenceSlice) -> None:
        size, memory, blocks = self._block_size, self._memory, part.block_ids
        for position, token_id in enumerate(part.token_ids, part.start):
            memory[blocks[position // size]][position % size] = token_id

    def _say(self, part: SequenceSlice, sample: SampleRequest, now: float) -> Sampled | Exception | None:
        actor = self._actors[part.sequence_id]
        if actor.due_at > now:
            return None
        script, position = actor.script, sample.position
        if script.fail_after is not None and position >= script.fail_after:
            return Failure(grpc.StatusCode.INTERNAL, f"the script fails after {script.fail_after} tokens")
        began = (
            not actor.verified or len(part.token_ids) > 1
        )  # more than one: a prompt, or all again after a preemption
        if began and not self._remembers(part, sample):
            return Failure(grpc.StatusCode.INTERNAL, "the KV cache holds other tokens than the sequence")
        actor.verified = True
        actor.due_at = self._due(script, position + 1, now, script.itl_s)
        token_id = self._token(script, position)
        if sample.params.logprobs is None:
            return Sampled(token_id)
        vocab = self._model.vocab_size
        top = tuple(((token_id + rank) % vocab, -0.5 - rank) for rank in range(sample.params.logprobs))
        return Sampled(token_id, -0.5, top)

    def _token(self, script: Script, position: int) -> int:
        """Past the end of the script (a caller who ignores the end-of-sequence token) it starts again."""
        length = len(script.token_ids)
        if script.finish == "stop" and (position == length or not length):
            return self._model.eos_token_ids[0]
        return script.token_ids[position % length]

    def _remembers(self, part: SequenceSlice, sample: SampleRequest) -> bool:
        expected = [*sample.prompt_ids, *sample.output_ids]
        stored = [token_id for block in part.block_ids for token_id in self._memory[block]]
        return stored[: len(expected)] == expected

    @staticmethod
    def _due(script: Script, position: int, now: float, delay: float) -> float:
        """Rounded to a quarter of the delay, so that sequences of one rhythm share steps, as in a real engine."""
        if script.hang_after is not None and position >= script.hang_after:
            return math.inf
        if position == 0 or delay == 0:
            return now + delay
        grid = delay / 4
        return round((now + delay) / grid) * grid
