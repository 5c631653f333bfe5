"""Log probabilities of a token and its alternatives, from the model's own distribution.

As vLLM's default `raw_logprobs`: before temperature, penalties, bias and filters. A caller who set them sees what the
model thought, not what was drawn from.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

LEAST = -9999.0
"""Stands for minus infinity, which JSON cannot carry; the value that vLLM's API uses."""


def logprobs_of(
    logits: npt.NDArray[np.float32], token_id: int, alternatives: int
) -> tuple[float, tuple[tuple[int, float], ...]]:
    """The token's logprob and the `alternatives` most likely (token id, logprob), best first, lower ids first in a tie.

    `logits` is one raw row [vocabulary] with a finite maximum.
    """
    best = logits.max()
    normaliser = float(best) + float(np.log(np.exp(logits - best).sum(dtype=np.float64)))

    def logprob(index: int) -> float:
        return max(float(logits[index]) - normaliser, LEAST)

    count = min(alternatives, logits.size)
    if count == 0:
        return logprob(token_id), ()
    least = np.partition(logits, logits.size - count)[logits.size - count]
    candidates = np.flatnonzero(logits >= least)
    ids = candidates[np.lexsort((candidates, -logits[candidates]))][:count]
    return logprob(token_id), tuple((int(index), logprob(int(index))) for index in ids)
