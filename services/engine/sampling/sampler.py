"""One token for each row of logits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from services.engine.runner import Sampled, SampleRequest
from services.engine.sampling.adjust import adjusted, needs_adjusting
from services.engine.sampling.choose import choose
from services.engine.sampling.errors import SamplingError
from services.engine.sampling.logprobs import logprobs_of
from services.engine.sampling.uniform import uniforms


def sample_rows(logits: npt.NDArray[np.float32], requests: Sequence[SampleRequest]) -> list[Sampled | SamplingError]:
    """Sample request i from row i of `logits` [len(requests), vocabulary]; a row that can't be sampled fails alone."""
    most_likely = logits.argmax(axis=1)
    return [_sample(row, int(best), request) for row, best, request in zip(logits, most_likely, requests, strict=True)]


def _sample(row: npt.NDArray[np.float32], best: int, request: SampleRequest) -> Sampled | SamplingError:
    # argmax stops at the first NaN, so looking at its value finds NaN and infinity without another pass over the row.
    if not np.isfinite(row[best]):
        return SamplingError("the model's logits are not finite; the weights or the KV of this sequence are damaged")
    params = request.params
    try:
        token_id = _choose(row, best, request)
        if params.logprobs is None:
            return Sampled(token_id)
        logprob, top = logprobs_of(row, token_id, params.logprobs)
        return Sampled(token_id, logprob, top)
    except SamplingError as error:
        return error


def _choose(row: npt.NDArray[np.float32], best: int, request: SampleRequest) -> int:
    if needs_adjusting(request):
        row = adjusted(row, request)
        best = int(row.argmax())
        if not np.isfinite(row[best]):
            raise SamplingError("no token can be chosen: all are banned, or a bias or penalty made the logits infinite")
    if request.params.greedy:
        return best
    return choose(row, request.params, uniforms(request.seed, request.position, row.size))
