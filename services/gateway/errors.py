"""What a client is told when something can't be done: OpenAI's error shape and an honest HTTP status."""

from __future__ import annotations

import math

import grpc
import orjson

from services.platform.failures import Failure

_Code = grpc.StatusCode

_HTTP = {
    _Code.INVALID_ARGUMENT: 400,
    _Code.OUT_OF_RANGE: 400,
    _Code.UNAUTHENTICATED: 401,
    _Code.PERMISSION_DENIED: 403,
    _Code.NOT_FOUND: 404,
    _Code.RESOURCE_EXHAUSTED: 429,
    _Code.CANCELLED: 499,  # only ever logged: the client that would read it has left
    _Code.UNAVAILABLE: 503,
    _Code.FAILED_PRECONDITION: 503,
    _Code.DEADLINE_EXCEEDED: 504,
}
_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error", 504: "timeout_error"}
_CODES = {401: "invalid_api_key", 429: "rate_limit_exceeded", 503: "service_unavailable", 504: "timeout"}
_DEFAULT_RETRY_MS = 1_000  # for statuses that ask the client to come back, when nobody knows better
_ECHO_CHARACTERS = 64


class ApiError(Failure):
    """A failure whose HTTP status the gateway chose itself."""

    def __init__(
        self,
        http_status: int,
        message: str,
        *,
        status: grpc.StatusCode = _Code.INVALID_ARGUMENT,
        code: str = "",
        param: str = "",
        retry_after_ms: int = 0,
    ) -> None:
        super().__init__(status, message, code=code, param=param, retry_after_ms=retry_after_ms)
        self.http_status = http_status


class ClientGone(Failure):
    """The client closed its connection: nobody is left to answer."""

    def __init__(self) -> None:
        super().__init__(_Code.CANCELLED, "the client closed the connection")


def bad_request(message: str, param: str = "", code: str = "") -> ApiError:
    """400: the client must change the request."""
    return ApiError(400, message, param=param, code=code)


def deadline_exceeded() -> ApiError:
    """504: the time that the client (or REQUEST_TIMEOUT_S) allowed is over."""
    return ApiError(
        504,
        "the request's deadline passed; allow more time in x-request-timeout-ms or ask for fewer tokens",
        status=_Code.DEADLINE_EXCEEDED,
        code="timeout",
    )


def shutting_down() -> ApiError:
    """503: this gateway ends before the request did."""
    return ApiError(
        503, "this gateway is shutting down; send the request again", status=_Code.UNAVAILABLE, code="shutting_down"
    )


def echo(text: str) -> str:
    """A client's own short text for an error message; never more than 64 characters of it."""
    return text if len(text) <= _ECHO_CHARACTERS else text[:_ECHO_CHARACTERS] + "..."


def http_status(failure: Failure) -> int:
    """The HTTP status that says what `failure` says."""
    return failure.http_status if isinstance(failure, ApiError) else _HTTP.get(failure.status, 500)


def error_body(failure: Failure) -> bytes:
    """`{"error": {"message", "type", "param", "code"}}`."""
    status = http_status(failure)
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    error = {
        "message": failure.message or f"the request failed ({failure.status.name.lower()})",
        "type": kind,
        "param": failure.param or None,
        "code": failure.code or _CODES.get(status),
    }
    return orjson.dumps({"error": error})


def retry_headers(failure: Failure, *, tried_twice: bool = False) -> list[tuple[bytes, bytes]]:
    """When to come back, for 429 and 503. A fault that two workers had alike is not for the client to try again."""
    status = http_status(failure)
    if status == 500 and tried_twice:
        return [(b"x-should-retry", b"false")]
    if status not in (429, 503):
        return []
    milliseconds = failure.retry_after_ms or _DEFAULT_RETRY_MS
    return [
        (b"retry-after", str(math.ceil(milliseconds / 1000)).encode()),
        (b"retry-after-ms", str(milliseconds).encode()),
    ]
