"""A trace in the terminal: a tree of spans with their durations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from services.local.bars import bar
from services.local.terminal import CYAN, DIM, RED, paint

Span = Mapping[str, Any]
BAR_WIDTH = 30


def render(spans: Sequence[Span], *, colour: bool) -> str:
    """One line a span, children below their parents. A span whose parent is not here is shown as a root."""
    known = {span["span_id"] for span in spans}
    children: defaultdict[str, list[Span]] = defaultdict(list)
    for span in sorted(spans, key=lambda span: span["start_ns"]):
        children[span["parent_id"] if span["parent_id"] in known else ""].append(span)
    rows = list(_rows(children, "", ""))
    names = max(len(label) for label, _ in rows)
    begin = min(span["start_ns"] for span in spans)
    whole = max(span["end_ns"] for span in spans) - begin
    lines = [paint(f"trace {spans[0]['trace_id']}, {len(spans)} spans, {whole / 1e6:.2f} ms", DIM, on=colour)]
    for label, span in rows:
        failed = span["status"] == "error"
        error = f"  error {span['status_message']}" if failed else ""
        drawn = bar(span["start_ns"] - begin, span["end_ns"] - begin, whole, BAR_WIDTH)
        lines.append(
            f"{paint(f'{label:<{names}}', *([RED] if failed else []), on=colour)}  "
            f"{(span['instance'] or span['service']):<14} {paint(drawn, CYAN, on=colour)} "
            f"{(span['end_ns'] - span['start_ns']) / 1e6:>10.2f} ms{error}"
        )
    return "\n".join(lines)


def _rows(children: Mapping[str, Sequence[Span]], parent: str, indent: str) -> Iterator[tuple[str, Span]]:
    siblings = children.get(parent, ())
    for index, span in enumerate(siblings):
        last = index == len(siblings) - 1
        branch = "" if not parent else "└─ " if last else "├─ "
        yield f"{indent}{branch}{span['name']}", span
        yield from _rows(children, span["span_id"], indent + ("" if not parent else "   " if last else "│  "))
