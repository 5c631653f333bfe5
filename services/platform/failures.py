"""One failure type for every service: a gRPC status plus what the client should be told."""

from __future__ import annotations

from typing import Any, NoReturn

import grpc

from tokenpath.v1.common_pb2 import ErrorDetail

ERROR_DETAIL_KEY = "tokenpath-error-bin"


class Failure(Exception):
    """Something that can't be done. `message` is safe to show to a client and says what to do about it.

    `code` and `param` are OpenAI's error.code and error.param; `retry_after_ms` 0 means no advice.
    """

    def __init__(
        self, status: grpc.StatusCode, message: str, *, code: str = "", param: str = "", retry_after_ms: int = 0
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.retry_after_ms = retry_after_ms

    def trailing_metadata(self) -> tuple[tuple[str, bytes], ...]:
        """The ErrorDetail entry for the RPC's trailing metadata."""
        detail = ErrorDetail(code=self.code, param=self.param, message=self.message, retry_after_ms=self.retry_after_ms)
        return ((ERROR_DETAIL_KEY, detail.SerializeToString()),)


async def abort_with(
    context: grpc.aio.ServicerContext[Any, Any], failure: Failure, extra: tuple[tuple[str, str | bytes], ...] = ()
) -> NoReturn:
    """End the RPC with the failure's status and detail; `extra` joins the trailing metadata."""
    await context.abort(failure.status, failure.message, (*failure.trailing_metadata(), *extra))
    raise AssertionError("context.abort returns never")


def failure_of(error: grpc.aio.AioRpcError, peer: str) -> Failure:
    """What a failed call to `peer` (a service's name) means: its ErrorDetail, or a plain statement of the status."""
    for key, value in error.trailing_metadata() or ():
        if key == ERROR_DETAIL_KEY and isinstance(value, bytes):
            detail = ErrorDetail.FromString(value)
            return Failure(
                error.code(),
                detail.message,
                code=detail.code,
                param=detail.param,
                retry_after_ms=detail.retry_after_ms,
            )
    says, code = _PLAIN.get(error.code(), (f"answered {error.code().name}", ""))
    return Failure(error.code(), f"{peer} {says}", code=code)


_PLAIN = {
    grpc.StatusCode.UNAVAILABLE: ("is not available now; try again", "service_unavailable"),
    grpc.StatusCode.DEADLINE_EXCEEDED: ("took longer than it may; try again", "timeout"),
    grpc.StatusCode.RESOURCE_EXHAUSTED: ("answered RESOURCE_EXHAUSTED", "rate_limit_exceeded"),
}
