"""Where a request's time went: one table of what the first token and the whole request waited for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from services.local.bars import bar, percentages
from services.local.terminal import BOLD, CYAN, DIM, paint

UNACCOUNTED = "unaccounted"
FOLDED_SHARE = 0.001  # a part below this share of every sum is one of the "smaller parts"
LONGEST_BAR = 60
Sums = dict[str, float]


def render(journey: Mapping[str, Any], columns: int, colour: bool) -> Iterator[str]:
    """The table's lines, `columns` characters wide. Milliseconds and shares of both splits, a bar for the total."""
    splits = {"total": _sums(journey["total"])}
    wholes = [f"Total time: {journey['total_ms']:.2f} ms"]
    if journey["ttft_ms"] is not None:
        splits = {"first token": _sums(journey["ttft"]), **splits}
        wholes = [f"Time to first token: {journey['ttft_ms']:.2f} ms", *wholes]
    splits = _folded(splits)
    names = _names(splits)
    shares = {title: _shares(names, sums) for title, sums in splits.items()}
    wide = max(map(len, names))
    room = max(10, min(LONGEST_BAR, columns - wide - 18 * len(splits) - 4))
    total, whole = splits["total"], sum(splits["total"].values())
    yield paint("   ".join(wholes), BOLD, on=colour)
    yield paint(f"  {'':<{wide}}" + "".join(f"{title + ', ms':>18}" for title in splits), DIM, on=colour)
    for name in names:
        cells = "".join(
            _cell(sums[name], shares[title][name]) if name in sums else f"{'-':>11}{'':>7}"
            for title, sums in splits.items()
        )
        drawn = bar(0, total[name], whole, room).rstrip() if total.get(name) else ""
        yield f"  {name:<{wide}}{cells}  {paint(drawn, DIM if name == UNACCOUNTED else CYAN, on=colour)}".rstrip()
    sums_of_all = (_cell(sum(sums.values()), sum(shares[title].values())) for title, sums in splits.items())
    yield f"  {'sum':<{wide}}" + "".join(sums_of_all)


def _sums(split: Mapping[str, Any]) -> Sums:
    return {part["name"]: part["ms"] for part in split["parts"]}


def _folded(splits: dict[str, Sums]) -> dict[str, Sums]:
    """The same time in fewer parts: those that matter to no sum become one."""
    limits = {title: FOLDED_SHARE * sum(sums.values()) for title, sums in splits.items()}
    small = [
        name
        for name in _names(splits)
        if name != UNACCOUNTED and all(sums.get(name, 0.0) < limits[title] for title, sums in splits.items())
    ]
    if len(small) < 2:
        return splits
    return {
        title: {
            **{name: ms for name, ms in sums.items() if name not in small},
            f"{len(small)} smaller parts": sum(sums.get(name, 0.0) for name in small),
        }
        for title, sums in splits.items()
    }


def _names(splits: Mapping[str, Sums]) -> list[str]:
    """In order of first appearance, what is unaccounted for last."""
    every = dict.fromkeys(name for sums in splits.values() for name in sums)
    return sorted(every, key=lambda name: name == UNACCOUNTED)


def _shares(names: list[str], sums: Sums) -> Sums:
    return dict(zip(names, percentages([sums.get(name, 0.0) for name in names]), strict=True))


def _cell(ms: float, share: float) -> str:
    return f"{ms:>11.2f}{share:>6.1f}%"
