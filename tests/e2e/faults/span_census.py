"""B083: every span that was started is ended and arrives, however its request ended."""

from __future__ import annotations

import time
from collections import Counter

from tests.e2e.metrics import metric
from tests.e2e.otlp_receiver import OtlpReceiver, Span
from tests.eventually import eventually
from tests.stack import RunningStack

# A span of each of these stages is started for each call that the metric counts: (process, metric).
_COUNTED = {
    "request": ("gateway", "tokenpath_gateway_requests_total"),
    "auth": ("auth", "tokenpath_auth_calls_total"),
    "settle": ("auth", "tokenpath_auth_calls_total"),
    "detokenize": ("detokenizer", "tokenpath_detokenizer_streams_total"),
}
_CLIENT = 3


class SpanCensus:
    """Spans and counters since it was made; nothing else may use the stack meanwhile."""

    def __init__(self, stack: RunningStack, otlp: OtlpReceiver) -> None:
        self._stack = stack
        self._otlp = otlp
        self._since_ns = time.time_ns()
        self._before = {source: metric(stack, *source) for source in set(_COUNTED.values())}

    async def check(self) -> None:
        """As many spans as starts, no span whose parent never came, and a cancel is no error."""
        try:
            await eventually(lambda: not self._missing(), "all spans have arrived", 5.0)
        except AssertionError as error:
            raise AssertionError(f"{error}; missing: {self._missing()}") from None
        statuses = Counter(str(span.attributes.get("rpc.response.status_code")) for span in self._spans())
        assert statuses["CANCELLED"] > 0
        for span in self._spans():
            if span.attributes.get("rpc.response.status_code") == "CANCELLED":
                assert not span.error, span
        for process in self._stack.record.processes:
            if not process.name.startswith("redis"):
                assert metric(self._stack, process.name, "tokenpath_spans_dropped_total") == 0

    def _spans(self) -> list[Span]:
        return [span for span in self._otlp.spans if span.start_ns >= self._since_ns]

    def _missing(self) -> list[str]:
        spans = self._spans()
        there = {span.span_id for span in spans}
        lost = [
            f"the parent of {span.name} of {span.service}"
            for span in spans
            if span.parent_id and span.parent_id not in there
        ]
        counts = Counter(_COUNTED.get(span.stage) for span in spans if span.kind != _CLIENT)
        for source, before in self._before.items():
            started = metric(self._stack, *source) - before
            if counts[source] != started:
                lost.append(f"{source}: {counts[source]} spans of {started} starts")
        return lost
