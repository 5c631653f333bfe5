"""A tiny vocabulary and a core driven by hand, for tests of the engine without a model, a thread or a network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from services.engine.batching import BatchLimits
from services.engine.core import Core, CoreSettings
from services.engine.outcome import Outcome
from services.engine.sampling_params import SamplingParams
from services.engine.script import ScriptReader
from services.engine.scripted_runner import ScriptedRunner
from services.engine.sequence import EngineRequest

EOS = 256


class ByteVocabulary:
    """256 single-byte tokens, and EOS."""

    vocab_size = 257

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return list(text.encode())

    def decode(self, token_ids: Iterable[int], keep_special: bool = False) -> str:
        return b"".join(map(self.token_bytes, token_ids)).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < EOS else b""

    def is_special(self, token_id: int) -> bool:
        return token_id == EOS


def new_runner(blocks: int = 64, block_size: int = 16, max_model_len: int = 4096) -> ScriptedRunner:
    return ScriptedRunner(
        ScriptReader(ByteVocabulary()),
        name="bytes",
        vocab_size=ByteVocabulary.vocab_size,
        max_model_len=max_model_len,
        eos_token_id=EOS,
        num_blocks=blocks,
        block_size=block_size,
    )


def request(
    name: str, prompt: str | Sequence[int], *, choices: tuple[int, ...] = (0,), salt: str = "", **sampling: object
) -> EngineRequest:
    ids = tuple(prompt.encode()) if isinstance(prompt, str) else tuple(prompt)
    return EngineRequest(name, ids, SamplingParams(**sampling), choices, salt)  # type: ignore[arg-type]


@dataclass
class Driven:
    """A core with what it has said so far, by sequence id."""

    runner: ScriptedRunner
    core: Core
    tokens: dict[str, list[int]] = field(default_factory=dict)
    finished: dict[str, str] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    outcomes: list[Outcome] = field(default_factory=list)

    @staticmethod
    def new(
        runner: ScriptedRunner | None = None,
        *,
        max_num_seqs: int = 32,
        step_tokens: int = 64,
        max_model_len: int = 4096,
    ) -> Driven:
        runner = runner or new_runner()
        settings = CoreSettings(BatchLimits(max_num_seqs, step_tokens), max_model_len, "fingerprint")
        return Driven(runner, Core(runner, settings, runner))

    def add(self, wanted: EngineRequest) -> None:
        self.core.add(wanted, [f"{wanted.request_id}/{index}" for index in wanted.choices])

    def step(self) -> bool:
        outcome = self.core.step()
        if outcome is None:
            return False
        self.outcomes.append(outcome)
        for emission in outcome.emissions:
            if emission.sampled is not None:
                self.tokens.setdefault(emission.sequence_id, []).append(emission.sampled.token_id)
            if emission.finish:
                self.finished[emission.sequence_id] = emission.finish
            if emission.failure is not None:
                self.failures[emission.sequence_id] = emission.failure.message
        usage = self.core.load.usage
        assert usage.total == self.runner.num_blocks
        return True

    def run(self, limit: int = 10_000) -> None:
        """Step until nothing is left to do now."""
        for _ in range(limit):
            if not self.step():
                return
        raise AssertionError(f"the engine is still busy after {limit} steps")

    def text(self, sequence_id: str) -> str:
        return bytes(token for token in self.tokens.get(sequence_id, []) if token < EOS).decode()
