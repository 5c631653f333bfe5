"""A stage of a request: one measurement that becomes both the span and the StageReport, so that they agree.

A stage is never made the "current" context: a span kept current across the yields of an async generator is
detached in the wrong context when a client leaves. Children get `stage.context` by hand.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

import grpc
from opentelemetry.context import Context
from opentelemetry.trace import Span, Status, StatusCode, set_span_in_context

from services.platform.failures import Failure
from tokenpath.v1.common_pb2 import StagePart, StageReport

AttributeValue = str | bool | int | float | list[str] | list[int] | list[float]

# RPC semantic conventions: only these make a SERVER span an error; the rest are the caller's affair.
_SERVER_ERRORS = {"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"}


class Stage:
    """Use as a context manager; made by `Telemetry.stage`. Durations in nanoseconds of one monotonic clock."""

    def __init__(
        self,
        name: str,
        service: str,
        instance: str,
        span: Span,
        start_unix_ns: int,
        started_ns: int,
        *,
        is_rpc_server: bool,
    ) -> None:
        """`start_unix_ns` is wall clock, `started_ns` the same moment on the monotonic clock of `perf_counter_ns`."""
        self.name = name
        self.context: Context = set_span_in_context(span, Context())
        self.start_unix_ns = start_unix_ns
        self.bytes = 0
        self.tokens = 0
        self.cached_tokens = 0
        self._service = service
        self._instance = instance
        self._span = span
        self._is_rpc_server = is_rpc_server
        self._started = started_ns
        self._duration_ns: int | None = None
        self._parts: dict[str, int] = {}
        self._attributes: dict[str, str] = {}
        self._ended = False

    @property
    def trace_id(self) -> str:
        """32 hex digits."""
        return f"{self._span.get_span_context().trace_id:032x}"

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the time of the block towards the part `name`. Parts must not overlap."""
        started = time.perf_counter_ns()
        try:
            yield
        finally:
            self.add_part(name, time.perf_counter_ns() - started)

    def add_part(self, name: str, duration_ns: int) -> None:
        """Add time that was measured elsewhere (a compute thread, say) to a part."""
        self._parts[name] = self._parts.get(name, 0) + duration_ns

    def set(self, key: str, value: AttributeValue) -> None:
        """A span attribute that the journey does not show."""
        self._span.set_attribute(key, value)

    def note(self, key: str, value: AttributeValue) -> None:
        """A fact for the journey, and for the span under `tokenpath.<stage>.<key>`."""
        self._attributes[key] = str(value)
        self._span.set_attribute(f"tokenpath.{self.name}.{key}", value)

    def event(self, name: str, **attributes: str | int | float) -> None:
        """A rare fact with its moment: first_token, preempted, kv_missing... Never one a token."""
        self._span.add_event(name, attributes)

    def stop(self) -> int:
        """Fix the duration (the first call counts) and return it in nanoseconds."""
        if self._duration_ns is None:
            self._duration_ns = time.perf_counter_ns() - self._started
        return self._duration_ns

    def report(self) -> StageReport:
        """This stage's account; fixes the duration, so that the span will say the same."""
        return StageReport(
            stage=self.name,
            service=self._service,
            instance=self._instance,
            start_unix_ns=self.start_unix_ns,
            duration_ns=self.stop(),
            parts=[StagePart(name=name, duration_ns=duration) for name, duration in self._parts.items()],
            bytes=self.bytes,
            tokens=self.tokens,
            cached_tokens=self.cached_tokens,
            attributes=self._attributes,
        )

    def end(self, error: BaseException | None = None) -> None:
        """End the span; later calls do nothing. Only the kind of an error is recorded, never its text."""
        if self._ended:
            return
        self._ended = True
        status = _status_name(error)
        self._span.set_attribute("rpc.response.status_code", status)
        if error is not None and status != "CANCELLED" and (not self._is_rpc_server or status in _SERVER_ERRORS):
            self._span.set_attribute("error.type", status)
            self._span.set_status(Status(StatusCode.ERROR, status))
        for name, value in (("bytes", self.bytes), ("tokens", self.tokens), ("cached_tokens", self.cached_tokens)):
            if value:
                self._span.set_attribute(f"tokenpath.{self.name}.{name}", value)
        for part, duration in self._parts.items():
            self._span.set_attribute(f"tokenpath.{self.name}.part.{part}_ms", duration / 1e6)
        self._span.end(self.start_unix_ns + self.stop())

    def __enter__(self) -> Stage:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end(error)


def _status_name(error: BaseException | None) -> str:
    if error is None:
        return "OK"
    if isinstance(error, Failure):
        return error.status.name
    if isinstance(error, grpc.aio.AioRpcError):
        return error.code().name
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        return "CANCELLED"
    if isinstance(error, TimeoutError):
        return "DEADLINE_EXCEEDED"
    return "INTERNAL"
