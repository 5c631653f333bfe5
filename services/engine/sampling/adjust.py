"""What changes logits before a token is chosen, greedy or not: banned tokens, bias, penalties.

Order and definitions are vLLM's (`vllm/v1/sample/sampler.py`): minimum tokens, logit bias, then repetition penalty
(over prompt and output; as Hugging Face's RepetitionPenaltyLogitsProcessor, from arXiv:1909.05858), then frequency and
presence penalty (over the output only, as in OpenAI's API reference).
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from services.engine.runner import SampleRequest
from services.engine.sampling.errors import SamplingError


def needs_adjusting(request: SampleRequest) -> bool:
    """False when `adjusted` would return the logits as they are."""
    params = request.params
    return bool(
        request.banned_ids
        or params.logit_bias
        or params.repetition_penalty != 1.0
        or params.frequency_penalty
        or params.presence_penalty
    )


def adjusted(logits: npt.NDArray[np.float32], request: SampleRequest) -> npt.NDArray[np.float32]:
    """A changed copy of one row of logits [vocabulary]. Raises SamplingError for a token id outside it."""
    params = request.params
    row = logits.copy()
    if request.banned_ids:
        row[_ids(request.banned_ids, row.size)] = -np.inf
    if params.logit_bias:
        bias = np.fromiter(params.logit_bias.values(), dtype=np.float32, count=len(params.logit_bias))
        row[_ids(params.logit_bias.keys(), row.size)] += bias
    if params.repetition_penalty != 1.0:
        seen = np.unique(_ids((*request.prompt_ids, *request.output_ids), row.size))
        values = row[seen]
        penalty = np.float32(params.repetition_penalty)
        row[seen] = np.where(values > 0, values / penalty, values * penalty)
    if (params.frequency_penalty or params.presence_penalty) and request.output_ids:
        ids, counts = np.unique(_ids(request.output_ids, row.size), return_counts=True)
        row[ids] -= counts.astype(np.float32) * np.float32(params.frequency_penalty)
        row[ids] -= np.float32(params.presence_penalty)
    return row


def _ids(ids: Collection[int], vocab_size: int) -> npt.NDArray[np.int64]:
    array = np.fromiter(ids, dtype=np.int64, count=len(ids))
    if array.size and (array.min() < 0 or array.max() >= vocab_size):
        raise SamplingError(f"a token id of the sampling parameters is outside the vocabulary (0 to {vocab_size - 1})")
    return array
