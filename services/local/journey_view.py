"""A journey in the terminal: both splits, and the stages as a waterfall."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from services.local.bars import bar, percentages
from services.local.terminal import BLUE, BOLD, CYAN, DIM, GREEN, MAGENTA, RED, YELLOW, paint, size_words

PIPE_WIDTH = 110
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
    columns = width or shutil.get_terminal_size((PIPE_WIDTH, 24)).columns
    lines = [*_head(journey, colour)]
    for title, split, whole in (
        ("Time to first token", journey["ttft"], journey["ttft_ms"]),
        ("Total time", journey["total"], journey["total_ms"]),
    ):
        if whole is not None:
            lines += ["", paint(f"{title}: {whole:.2f} ms", BOLD, on=colour), *_split(split["parts"], columns, colour)]
    lines += ["", paint("Stages", BOLD, on=colour), *_waterfall(journey, columns, colour)]
    if journey.get("decision"):
        lines += ["", paint("Routing", BOLD, on=colour), *_decision(journey["decision"])]
    return "\n".join(lines)


def _head(journey: Mapping[str, Any], colour: bool) -> Iterator[str]:
    outcome = journey["outcome"]
    yield (
        f"{paint(journey['request_id'], BOLD, on=colour)}   {journey['model']}   {journey['mode']}   "
        f"{paint(outcome, GREEN if outcome == 'done' else RED, on=colour)}"
    )
    usage = journey["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    cost = "not settled yet" if journey["cost_usd"] is None else f"${journey['cost_usd']:.9f}"
    yield (
        f"{usage['prompt_tokens']} prompt tokens ({cached} cached), {usage['completion_tokens']} generated   "
        f"cost {cost}   trace {journey['trace_id']}"
    )


def _split(parts: Sequence[Mapping[str, Any]], columns: int, colour: bool) -> Iterator[str]:
    names = max((len(part["name"]) for part in parts), default=0)
    room = max(10, min(60, columns - names - 26))
    whole = sum(part["ms"] for part in parts)
    shares = percentages([part["ms"] for part in parts])
    for part, share in zip(parts, shares, strict=True):
        drawn = bar(0, part["ms"], whole, room).rstrip() if part["ms"] else ""
        shown = paint(drawn, DIM if part["name"] == "unaccounted" else CYAN, on=colour)
        yield f"  {part['name']:<{names}} {part['ms']:>10.2f} ms {share:>5.1f}%  {shown}"
    yield f"  {'sum':<{names}} {whole:>10.2f} ms {sum(shares):>5.1f}%"


def _waterfall(journey: Mapping[str, Any], columns: int, colour: bool) -> Iterator[str]:
    stages = journey["stages"]
    names = max((len(stage["stage"]) for stage in stages), default=5)
    places = max((len(stage["instance"]) for stage in stages), default=5)
    room = max(20, columns - names - places - 54)
    yield paint(
        f"  {'stage':<{names}} {'where':<{places}} {'0 ms':<{room}} {'start':>9} {'duration':>9} {'tokens':>7}"
        f" {'cached':>7} {'bytes':>10}",
        DIM,
        on=colour,
    )
    for stage in stages:
        start, duration = stage["start_ms"], stage["duration_ms"]
        drawn = bar(start, start + duration, journey["total_ms"], room)
        yield (
            f"  {stage['stage']:<{names}} {stage['instance']:<{places}} "
            f"{paint(drawn, _COLOURS.get(stage['service'], BLUE), on=colour)} {start:>9.2f} {duration:>9.2f} "
            f"{stage['tokens'] or '-':>7} {stage['cached_tokens'] or '-':>7} "
            f"{size_words(stage['bytes']) if stage['bytes'] else '-':>10}"
        )


def _decision(decision: Mapping[str, Any]) -> Iterator[str]:
    yield f"  policy {decision['policy']}"
    for score in decision["scores"]:
        terms = ", ".join(f"{name} {value:g}" for name, value in score["terms"].items())
        yield f"  {score['worker']}   score {score['score']:g}   {score['cached_tokens']} tokens cached   {terms}"
