"""A trace in the terminal: a tree of spans with their durations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from services.local.bars import bar
from services.local.terminal import CYAN, DIM, RED, paint, width_of

Span = Mapping[str, Any]
SHORTEST_BAR, LONGEST_BAR = 10, 30
LONGEST_NAME = 0.5  # of the line


def render(spans: Sequence[Span], *, colour: bool, width: int | None = None) -> str:
    """One line a span, `width` characters wide (the terminal's own if None), children below their parents. A span
    whose parent is not here is shown as a root. An error's text follows on a line of its own."""
    known = {span["span_id"] for span in spans}
    children: defaultdict[str, list[Span]] = defaultdict(list)
    for span in sorted(spans, key=lambda span: span["start_ns"]):
        children[span["parent_id"] if span["parent_id"] in known else ""].append(span)
    rows = list(_rows(children, "", ""))
    columns = width or width_of()
    names = min(max(len(label) for label, _ in rows), int(columns * LONGEST_NAME))
    places = max(len(_place(span)) for span in spans)
    begin = min(span["start_ns"] for span in spans)
    whole = max(span["end_ns"] for span in spans) - begin
    room = min(LONGEST_BAR, max(SHORTEST_BAR, columns - names - places - 15))
    lines = [paint(f"trace {spans[0]['trace_id']}, {len(spans)} spans, {whole / 1e6:.2f} ms", DIM, on=colour)]
    for label, span in rows:
        failed = [RED] if span["status"] == "error" else []
        drawn = bar(span["start_ns"] - begin, span["end_ns"] - begin, whole, room)
        shown = label if len(label) <= names else f"{label[: names - 1]}…"
        lines.append(
            f"{paint(f'{shown:<{names}}', *failed, on=colour)}  {_place(span):<{places}} "
            f"{paint(drawn, CYAN, on=colour)} {(span['end_ns'] - span['start_ns']) / 1e6:>8.2f} ms"
        )
        if failed:
            lines.append(paint(f"    error: {span['status_message']}", *failed, on=colour))
    return "\n".join(lines)


def _place(span: Span) -> str:
    return str(span["instance"] or span["service"])


def _rows(children: Mapping[str, Sequence[Span]], parent: str, indent: str) -> Iterator[tuple[str, Span]]:
    siblings = children.get(parent, ())
    for index, span in enumerate(siblings):
        last = index == len(siblings) - 1
        branch = "" if not parent else "└─ " if last else "├─ "
        # A method without its package: tokenpath.v1.Auth/Settle is Auth/Settle.
        name = span["name"].rpartition(".")[2] if "/" in span["name"] else span["name"]
        yield f"{indent}{branch}{name}", span
        yield from _rows(children, span["span_id"], indent + ("" if not parent else "   " if last else "│  "))
