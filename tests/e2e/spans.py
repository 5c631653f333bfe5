"""Questions about one trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.e2e.otlp_receiver import OtlpReceiver, Span
from tests.eventually import eventually

SERVER, CLIENT = 2, 3  # of OTLP's span kinds
PATH = {"gateway", "auth", "router", "scheduler", "detokenizer", "decode"}
APART = PATH | {"prefill"}


@dataclass(frozen=True)
class Trace:
    """Spans of one trace; `caller` is the span id that the client sent, if it did."""

    spans: Sequence[Span]
    caller: str = ""

    @property
    def root(self) -> Span:
        (root,) = [span for span in self.spans if span.parent_id == self.caller]
        return root

    @property
    def services(self) -> set[str]:
        return {span.service for span in self.spans}

    def children(self, of: Span) -> list[Span]:
        return [span for span in self.spans if span.parent_id == of.span_id]

    def orphans(self) -> list[Span]:
        """Spans whose parent never arrived."""
        known = {span.span_id for span in self.spans} | {self.caller}
        return [span for span in self.spans if span.parent_id not in known]

    def unanswered(self) -> list[Span]:
        """Calls without a span of the service that was called."""
        return [span for span in self.spans if span.kind == CLIENT and not self.children(span)]

    def stage(self, name: str, kind: int | None = None) -> list[Span]:
        return [span for span in self.spans if span.stage == name and kind in (None, span.kind)]

    def is_whole(self, services: set[str]) -> bool:
        """The root has come, all of these services have, and no parent or callee is missing."""
        roots = [span for span in self.spans if span.parent_id == self.caller]
        return len(roots) == 1 and self.services >= services and not self.orphans() and not self.unanswered()

    def uncovered_ns(self) -> int:
        """How much of the root none of its children covers."""
        root, covered, until = self.root, 0, self.root.start_ns
        for child in sorted(self.children(root), key=lambda span: span.start_ns):
            start, end = max(child.start_ns, until), min(child.end_ns, root.end_ns)
            covered += max(0, end - start)
            until = max(until, end)
        return root.duration_ns - covered


async def whole_trace(otlp: OtlpReceiver, trace_id: str, services: set[str], caller: str = "") -> Trace:
    """The trace, once every service has exported its part."""
    await eventually(lambda: Trace(otlp.trace(trace_id), caller).is_whole(services), f"trace {trace_id} is whole")
    return Trace(otlp.trace(trace_id), caller)
