"""How the tokens of one sequence are chosen, and when it ends; free of torch and of protobuf."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

GREEDY_BELOW = 1e-5
"""A temperature below this is greedy, as in vLLM: dividing by it would overflow the logits."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Values are in range already: whoever takes them from a caller checks them there.

    `seed` is what the whole request was given; each choice samples with `(seed, choice index)`.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """Keep the k most likely tokens; 0 keeps all."""
    min_p: float = 0.0
    """Keep tokens at least this share as likely as the most likely one; 0 keeps all."""
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    max_tokens: int | None = None
    """Output tokens at most; None is up to the model's length."""
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    """Number of top alternatives to report beside the chosen token's logprob; None reports no logprob at all."""
    seed: int = 0

    @property
    def greedy(self) -> bool:
        """True where the most likely token is taken, so no random number is needed."""
        return self.temperature < GREEDY_BELOW
