"""What travels with a request through every hop, in gRPC metadata."""

from __future__ import annotations

import dataclasses
from typing import Any

import grpc
from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

REQUEST_ID_KEY = "tokenpath-request-id"
ATTEMPT_KEY = "tokenpath-attempt"
CACHE_SALT_KEY = "tokenpath-cache-salt"

_PROPAGATOR = TraceContextTextMapPropagator()


@dataclasses.dataclass(frozen=True, slots=True)
class RequestContext:
    """Which request this is, which try of it, whose KV pages it may share, and the span above."""

    request_id: str
    attempt: int
    cache_salt: str
    trace: Context

    def metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        """Metadata for an outgoing call, with `traceparent` of `trace`."""
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier, self.trace)
        return (
            (REQUEST_ID_KEY, self.request_id),
            (ATTEMPT_KEY, str(self.attempt)),
            (CACHE_SALT_KEY, self.cache_salt),
            *carrier.items(),
        )

    def with_trace(self, trace: Context) -> RequestContext:
        """The same request below another span."""
        return dataclasses.replace(self, trace=trace)

    @staticmethod
    def from_grpc(context: grpc.aio.ServicerContext[Any, Any]) -> RequestContext:
        """Read an incoming call. What is absent becomes empty; a malformed traceparent means a new root."""
        pairs = {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}
        attempt = pairs.get(ATTEMPT_KEY, "1")
        return RequestContext(
            request_id=pairs.get(REQUEST_ID_KEY, ""),
            attempt=int(attempt) if attempt.isdecimal() else 1,
            cache_salt=pairs.get(CACHE_SALT_KEY, ""),
            trace=trace_of(pairs),
        )


def trace_of(headers: dict[str, str]) -> Context:
    """The W3C trace context in lower-case `headers`; an empty context when there is none or it is malformed."""
    return _PROPAGATOR.extract(headers, Context())
