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


def choose(logits: npt.NDArray[np.float32], params: SamplingParams, uniform: float) -> int:
    """The token for `uniform` in [0, 1), by the inverse of the cumulated distribution.

    `logits` is one row [vocabulary] with a finite maximum; the temperature of `params` is above zero.
    """
    scores = logits / np.float32(params.temperature)
    best = float(scores.max())
    ids = _within_thresholds(scores, best, params)
    weights = np.exp(scores[ids] - np.float32(best)).astype(np.float64)
    if params.top_p < 1.0:
        ids, weights = _nucleus(ids, weights, params.top_p)
    cumulated = np.cumsum(weights)
    # `uniform` is at most 1 - 2**-53, so the product rounds to less than the total: a token with a weight is found.
    return int(ids[np.searchsorted(cumulated, uniform * cumulated[-1], side="right")])


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
    ids: npt.NDArray[np.intp], weights: npt.NDArray[np.float64], top_p: float
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float64]]:
    needed = weights.sum() * top_p
    if weights.size > _HEAD:
        head = np.argpartition(-weights, _HEAD)[:_HEAD]
        if weights[head].sum() > needed:
            ids, weights = ids[head], weights[head]
    order = np.lexsort((ids, -weights))
    ids, weights = ids[order], weights[order]
    before = np.cumsum(weights) - weights
    kept = max(1, int(np.searchsorted(before, needed, side="left")))
    return ids[:kept], weights[:kept]
