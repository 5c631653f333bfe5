"""The last traces, bounded by their number and by the number of spans."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from services.local.collector.spans import ReceivedSpan, Span, read

REQUEST_IDS = ("tokenpath.request.id", "gen_ai.response.id")


@dataclass
class TraceStore:
    """Keeps whole traces: when one of the bounds is passed, the trace that has been quiet for longest goes."""

    max_traces: int
    max_spans: int
    dropped_spans: int = 0
    spans: int = 0
    _traces: OrderedDict[str, list[ReceivedSpan]] = field(default_factory=OrderedDict)

    def add(self, spans: Iterable[ReceivedSpan]) -> None:
        """Take spans in; those of a trace may come in any order and from any process."""
        for span in spans:
            trace_id = span.trace_id
            self._traces.setdefault(trace_id, []).append(span)
            self._traces.move_to_end(trace_id)
            self.spans += 1
        while self._traces and (len(self._traces) > self.max_traces or self.spans > self.max_spans):
            _, oldest = self._traces.popitem(last=False)
            self.spans -= len(oldest)
            self.dropped_spans += len(oldest)

    def get(self, identity: str) -> list[Span] | None:
        """The spans of a trace, by trace id or by a request id on one of its spans, ordered by start."""
        trace = self._traces.get(identity) or self._of_request(identity)
        return _read(trace) if trace else None

    def latest(self, limit: int) -> list[list[Span]]:
        """The traces that were added to last, newest first."""
        newest = list(reversed(self._traces))[:limit]
        return [_read(self._traces[trace_id]) for trace_id in newest]

    def _of_request(self, request_id: str) -> list[ReceivedSpan] | None:
        # The newest first: a request that is asked for has usually just been made.
        for trace in reversed(self._traces.values()):
            if any(span.has(REQUEST_IDS, request_id) for span in trace):
                return trace
        return None


def _read(trace: Iterable[ReceivedSpan]) -> list[Span]:
    return sorted(map(read, trace), key=lambda span: span.start_ns)
