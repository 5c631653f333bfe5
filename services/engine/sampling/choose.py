"""A random choice among the tokens that min-p, top-k and top-p leave.

Order and edges are vLLM's (`vllm/v1/sample/ops/topk_topp_sampler.py`): min-p and top-k are thresholds on the logit
(tokens equal to the k-th stay), top-p is over what they leave and keeps the token that crosses it: top_p 0 keeps one.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from services.engine.sampling_params import SamplingParams

_HEAD = 1024
"""Top-p sorts this many of the most likely tokens first; all of them are sorted only if that wasn't enough."""


def choose(logits: npt.NDArray[np.float32], params: SamplingParams, uniforms: npt.NDArray[np.float32]) -> int:
    """The token that comes first when each token arrives after an exponential wait at the rate of its weight.

    `uniforms` [vocabulary] has a random number between 0 and 1 for each token; `logits` is one row [vocabulary] with a
    finite maximum; the temperature of `params` is above zero. The two first tokens are hardly ever so close that the
    rounding of another batch changes their order. The inverse of the cumulated distribution would have as many such
    edges as there are tokens.
    """
    ids, weights = candidates(logits, params)
    waits = -np.log1p(-uniforms[ids])
    return int(ids[np.argmax(weights / waits)])


def candidates(
    logits: npt.NDArray[np.float32], params: SamplingParams
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float32]]:
    """The tokens that may be chosen, and their probabilities up to a common factor."""
    scores = logits / np.float32(params.temperature)
    best = float(scores.max())
    ids = _within_thresholds(scores, best, params)
    weights = np.exp(scores[ids] - np.float32(best))
    return _nucleus(ids, weights, params.top_p) if params.top_p < 1.0 else (ids, weights)


def _within_thresholds(scores: npt.NDArray[np.float32], best: float, params: SamplingParams) -> npt.NDArray[np.intp]:
    least = -math.inf
    if 0 < params.top_k < scores.size:
        least = float(np.partition(scores, scores.size - params.top_k)[scores.size - params.top_k])
    if params.min_p > 0.0:
        least = max(least, min(best, best + math.log(params.min_p)))
    if least == -math.inf:
        return np.arange(scores.size)
    return np.flatnonzero(scores >= least)


def _nucleus(
    ids: npt.NDArray[np.intp], weights: npt.NDArray[np.float32], top_p: float
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float32]]:
    needed = weights.sum(dtype=np.float64) * top_p
    if weights.size > _HEAD:
        head = np.argpartition(-weights, _HEAD)[:_HEAD]
        if weights[head].sum(dtype=np.float64) > needed:
            ids, weights = ids[head], weights[head]
    order = np.lexsort((ids, -weights))
    ids, weights = ids[order], weights[order]
    before = np.cumsum(weights, dtype=np.float64) - weights
    kept = max(1, int(np.searchsorted(before, needed, side="left")))
    return ids[:kept], weights[:kept]
