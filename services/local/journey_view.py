"""A journey in the terminal: where its time went, its stages as a waterfall, and why it went to these workers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from services.local import journey_parts
from services.local.bars import bar
from services.local.terminal import BLUE, BOLD, CYAN, DIM, GREEN, MAGENTA, RED, YELLOW, paint, size_words, width_of

SHORTEST_BAR = 12
LEAST_WANTED = ("cached", "bytes", "tokens", "where")  # columns that a narrow terminal goes without, the first first
_COLOURS = {
    "gateway": BLUE,
    "auth": MAGENTA,
    "router": CYAN,
    "scheduler": YELLOW,
    "prefill": GREEN,
    "decode": GREEN,
    "detokenizer": BLUE,
}


def render(journey: Mapping[str, Any], *, colour: bool, width: int | None = None) -> str:
    """The journey as text, `width` characters wide (the terminal's own if None). Times in milliseconds."""
    columns = width or width_of()
    lines = [*_head(journey, colour), "", *journey_parts.render(journey, columns, colour)]
    lines += ["", paint("Stages", BOLD, on=colour), *_waterfall(journey, columns, colour)]
    if journey.get("decision"):
        lines += ["", paint("Routing", BOLD, on=colour), *_decision(journey["decision"])]
    return "\n".join(lines)


def _head(journey: Mapping[str, Any], colour: bool) -> Iterator[str]:
    outcome = journey["outcome"]
    yield (
        f"{paint(journey['request_id'], BOLD, on=colour)}   {journey['model']}   "
        f"{paint(outcome, GREEN if outcome == 'done' else RED, on=colour)}"
    )
    usage = journey["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    cost = "not settled yet" if journey["cost_usd"] is None else f"${journey['cost_usd']:.9f}"
    yield (
        f"{journey['mode']}   {usage['prompt_tokens']} prompt tokens ({cached} cached), "
        f"{usage['completion_tokens']} generated"
    )
    yield f"trace {journey['trace_id']}   cost {cost}"


def _waterfall(journey: Mapping[str, Any], columns: int, colour: bool) -> Iterator[str]:
    stages = journey["stages"]
    cells = _cells(stages)
    for name in LEAST_WANTED:
        if _room(cells, columns) >= SHORTEST_BAR:
            break
        del cells[name]
    room = max(SHORTEST_BAR, _room(cells, columns))
    left = [name for name in ("stage", "where") if name in cells]
    right = [name for name in cells if name not in left]
    bars = [bar(s["start_ms"], s["start_ms"] + s["duration_ms"], journey["total_ms"], room) for s in stages]
    colours = [_COLOURS.get(stage["service"], BLUE) for stage in stages]
    for row, drawn in enumerate(["0 ms".ljust(room), *bars]):
        before = " ".join(f"{cells[name][row]:<{_wide(cells[name])}}" for name in left)
        after = " ".join(f"{cells[name][row]:>{_wide(cells[name])}}" for name in right)
        if row:
            yield f"  {before} {paint(drawn, colours[row - 1], on=colour)} {after}"
        else:
            yield paint(f"  {before} {drawn} {after}", DIM, on=colour)


def _cells(stages: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """The columns beside the bars: a title, then a cell a stage."""
    return {
        "stage": ["stage", *(stage["stage"] for stage in stages)],
        "where": ["where", *(stage["instance"] for stage in stages)],
        "start": ["start", *(f"{stage['start_ms']:.2f}" for stage in stages)],
        "duration": ["duration", *(f"{stage['duration_ms']:.2f}" for stage in stages)],
        "tokens": ["tokens", *(str(stage["tokens"] or "-") for stage in stages)],
        "cached": ["cached", *(str(stage["cached_tokens"] or "-") for stage in stages)],
        "bytes": ["bytes", *(size_words(stage["bytes"]) if stage["bytes"] else "-" for stage in stages)],
    }


def _room(cells: Mapping[str, list[str]], columns: int) -> int:
    """What the cells, a space after each and the indent leave for the bars."""
    return columns - 2 - sum(_wide(column) + 1 for column in cells.values())


def _wide(column: Sequence[str]) -> int:
    return max(map(len, column))


def _decision(decision: Mapping[str, Any]) -> Iterator[str]:
    yield f"  policy {decision['policy']}"
    for score in decision["scores"]:  # 0.0 is added because a load of -0.0 is shown as "-0"
        terms = ", ".join(f"{name} {value + 0.0:.4g}" for name, value in score["terms"].items())
        points = f"{score['score'] + 0.0:.4g}"
        yield f"  {score['worker']}   score {points}   {score['cached_tokens']} tokens cached   {terms}"
