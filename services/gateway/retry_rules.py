"""Which failures another worker may cure. A client's own mistakes, a passed deadline and a cancel are final."""

from __future__ import annotations

import grpc

from services.platform.failures import Failure

_Code = grpc.StatusCode
_WORKER_FAILURES = {
    _Code.UNAVAILABLE,
    _Code.INTERNAL,
    _Code.UNKNOWN,
    _Code.DATA_LOSS,
    _Code.UNIMPLEMENTED,
    _Code.RESOURCE_EXHAUSTED,  # that worker is full, the fleet may not be
    _Code.FAILED_PRECONDITION,  # that pair can't hand over
    _Code.ABORTED,
}


def another_worker_may_help(failure: Failure) -> bool:
    """Whether a decode worker's failure is worth a second worker."""
    return failure.status in _WORKER_FAILURES


def decode_can_prefill(failure: Failure) -> bool:
    """Whether the decode worker should compute the prompt after a prefill worker failed or fell silent."""
    return failure.status in _WORKER_FAILURES or failure.status is _Code.DEADLINE_EXCEEDED
