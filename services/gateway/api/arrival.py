"""An HTTP request's head: who sent it, under which ids, and how long it may take."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass

import grpc
from opentelemetry.context import Context
from starlette.responses import Response
from starlette.types import Scope

from services.gateway.errors import ApiError, bad_request, deadline_exceeded
from services.platform.context import trace_of
from services.platform.ids import new_request_id

_ECHO_CHARACTERS = 128
_LONGEST_KEY = 512


@dataclass(frozen=True)
class Arrival:
    """`request_id` is ours. `echo_id` is the caller's own, shortened, or ours; it is never used for anything."""

    request_id: str
    echo_id: str
    headers: dict[bytes, bytes]
    trace: Context
    arrived: float  # monotonic seconds

    @staticmethod
    def of(scope: Scope) -> Arrival:
        """Never fails: what is malformed counts as absent."""
        headers: dict[bytes, bytes] = dict(scope["headers"])
        request_id = new_request_id()
        trace_headers = {
            name: headers[name.encode()].decode("latin-1")
            for name in ("traceparent", "tracestate")
            if name.encode() in headers
        }
        return Arrival(
            request_id=request_id,
            echo_id=_visible(headers.get(b"x-request-id", b"")) or request_id,
            headers=headers,
            trace=trace_of(trace_headers),
            arrived=time.monotonic(),
        )

    def name(self, response: Response) -> None:
        """Give an answer its request's ids."""
        response.headers["x-request-id"] = self.echo_id
        response.headers["x-tokenpath-request-id"] = self.request_id

    def deadline(self, default_s: float) -> float:
        """When the request must be done, on the monotonic clock. Raises 400 (garbage) or 504 (no time left)."""
        raw = self.headers.get(b"x-request-timeout-ms")
        if raw is None:
            return self.arrived + default_s
        digits = raw.strip().removeprefix(b"-")
        if not digits.isdigit() or len(digits) > 12:
            raise bad_request("x-request-timeout-ms: must be a whole number of milliseconds", "x-request-timeout-ms")
        milliseconds = int(raw)
        if milliseconds <= 0:
            raise deadline_exceeded()
        return self.arrived + min(milliseconds / 1000, default_s)

    def mode(self, default: str) -> str:
        """How the client wants to be served: x-tokenpath-mode. Raises 400 for a mode that there is not."""
        mode = self.headers.get(b"x-tokenpath-mode", default.encode()).decode("latin-1")
        if mode not in ("", "disaggregated", "aggregated"):
            raise bad_request("x-tokenpath-mode: must be disaggregated or aggregated", "x-tokenpath-mode")
        return mode

    def key_digest(self) -> bytes:
        """SHA-256 of the bearer key: the key itself goes no further. Raises 401."""
        scheme, _, key = self.headers.get(b"authorization", b"").partition(b" ")
        key = key.strip()
        if scheme.lower() != b"bearer" or not key or len(key) > _LONGEST_KEY:
            raise _no_key()
        return hashlib.sha256(key).digest()


def _visible(value: bytes) -> str:
    short = value[:_ECHO_CHARACTERS]
    return short.decode("ascii") if short and all(0x21 <= byte <= 0x7E for byte in short) else ""


def _no_key() -> ApiError:
    return ApiError(
        401,
        "an API key is needed: send the header Authorization: Bearer <key>",
        status=grpc.StatusCode.UNAUTHENTICATED,
        code="invalid_api_key",
    )
