"""What the terminal shows."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.local import journey_view, trace_view
from services.local.bars import bar, percentages

JOURNEY: dict[str, Any] = {
    "request_id": "req_1",
    "trace_id": "ab" * 16,
    "model": "smollm2",
    "mode": "disaggregated",
    "outcome": "done",
    "started_unix_ms": 1,
    "usage": {"prompt_tokens": 20, "completion_tokens": 8, "prompt_tokens_details": {"cached_tokens": 16}},
    "cost_usd": 0.00000125,
    "ttft_ms": 30.0,
    "total_ms": 90.0,
    "ttft": {"parts": [{"name": "prefill", "ms": 20.0, "share": 2 / 3}, {"name": "route", "ms": 10.0, "share": 1 / 3}]},
    "total": {
        "parts": [{"name": "decode", "ms": 89.0, "share": 0.99}, {"name": "unaccounted", "ms": 1.0, "share": 0.01}]
    },
    "stages": [
        {
            "stage": "prefill",
            "service": "prefill",
            "instance": "prefill-0",
            "start_ms": 10.0,
            "duration_ms": 20.0,
            "parts": [],
            "bytes": 368640,
            "tokens": 20,
            "cached_tokens": 16,
            "attributes": {},
        }
    ],
    "decision": {
        "policy": "round_robin",
        "scores": [{"worker": "decode-0", "role": "decode", "score": 0.5, "terms": {"load": 0.1}, "cached_tokens": 16}],
    },
}


@given(st.lists(st.floats(min_value=0, max_value=1e6), max_size=12))
def test_percentages_add_up_to_100(parts: list[float]) -> None:
    shares = percentages(parts)
    assert sum(round(share * 10) for share in shares) == (1000 if sum(parts) > 0 else 0)
    assert all(share >= 0 for share in shares)


@given(st.floats(0, 100), st.floats(0, 100), st.integers(1, 60))
def test_a_bar_is_as_wide_as_its_room_and_never_invisible(start: float, length: float, width: int) -> None:
    drawn = bar(start, start + length, 100, width)
    assert len(drawn) == width
    assert drawn.strip()


def test_a_bar_is_to_scale() -> None:
    assert bar(0, 50, 100, 10) == "█████     "
    assert bar(50, 100, 100, 10) == "     █████"


def test_a_journey_shows_both_splits_and_every_column() -> None:
    text = journey_view.render(JOURNEY, colour=False, width=120)
    for shown in ("req_1", "Time to first token: 30.00 ms", "Total time: 90.00 ms", "66.7%", "33.3%"):
        assert shown in text
    (sums,) = [line.split() for line in text.splitlines() if line.startswith("  sum ")]
    assert sums == ["sum", "30.00", "100.0%", "90.00", "100.0%"]
    stage = next(line for line in text.splitlines() if "prefill-0" in line)
    assert stage.split()[-6:] == ["10.00", "20.00", "20", "16", "360.0", "KB"]
    assert "$0.000001250" in text
    assert "round_robin" in text
    assert "\033" not in text


def test_a_journey_has_colour_only_when_asked() -> None:
    assert "\033[" in journey_view.render(JOURNEY, colour=True, width=120)


def test_a_journey_without_a_first_token_or_a_decision_can_be_shown() -> None:
    failed = {**JOURNEY, "ttft_ms": None, "decision": None, "cost_usd": None, "outcome": "rejected"}
    text = journey_view.render(failed, colour=False, width=100)
    assert "Time to first token" not in text
    assert "not settled yet" in text


@pytest.mark.parametrize("width", [80, 100, 200])
def test_a_journey_keeps_to_the_width_it_has(width: int) -> None:
    lines = journey_view.render(JOURNEY, colour=False, width=width).splitlines()
    assert max(map(len, lines)) <= width
    assert "bytes" in next(line for line in lines if "duration" in line)


def test_a_narrow_waterfall_goes_without_its_least_wanted_columns() -> None:
    lines = journey_view.render(JOURNEY, colour=False, width=50).splitlines()
    title = next(line for line in lines if "duration" in line)
    assert len(title) <= 50
    assert "bytes" not in title


def test_parts_that_matter_to_neither_sum_become_one_and_the_sums_stay() -> None:
    tiny = [{"name": f"tiny{index}", "ms": 0.02, "share": 0.0} for index in range(3)]
    early = [{"name": "early", "ms": 0.05, "share": 0.0}]  # small in the total, not in the time to the first token
    journey = {
        **JOURNEY,
        "ttft": {"parts": [*early, {"name": "decode", "ms": 9.9, "share": 0.99}]},
        "total": {"parts": [*early, *tiny, *JOURNEY["total"]["parts"]]},
    }
    text = journey_view.render(journey, colour=False, width=100)
    rows = {line[2:18].strip(): line.split() for line in text.splitlines()}
    assert rows["3 smaller parts"][3:7] == ["0.00", "0.0%", "0.06", "0.1%"]
    assert "early" in rows
    assert not any("tiny" in name for name in rows)
    assert rows["sum"] == ["sum", "9.95", "100.0%", "90.11", "100.0%"]


def test_nothing_is_shown_as_minus_zero() -> None:
    score = {**JOURNEY["decision"]["scores"][0], "terms": {"load": -0.0}}
    journey = {**JOURNEY, "decision": {"policy": "p", "scores": [score]}}
    assert "load 0" in journey_view.render(journey, colour=False, width=100)


def span(span_id: str, parent_id: str, name: str, start: int) -> dict[str, Any]:
    return {
        "trace_id": "t",
        "span_id": span_id,
        "parent_id": parent_id,
        "name": name,
        "service": "gateway",
        "instance": "gateway",
        "start_ns": start * 1_000_000,
        "end_ns": (start + 5) * 1_000_000,
        "status": "unset",
        "status_message": "",
    }


def test_a_trace_is_a_tree_with_orphans_as_roots() -> None:
    spans = [
        span("c", "b", "grandchild", 2),
        span("a", "", "root", 0),
        span("b", "a", "tokenpath.v1.Auth/Settle", 1),
        span("x", "gone", "orphan", 3),
    ]
    text = trace_view.render(spans, colour=False)
    labels = [line.partition("  gateway ")[0].rstrip() for line in text.splitlines()[1:]]
    assert labels == ["root", "└─ Auth/Settle", "   └─ grandchild", "orphan"]
    assert "5.00 ms" in text


def test_a_trace_keeps_to_the_width_it_has() -> None:
    spans = [span("a", "", "chat " + "model" * 30, 0), {**span("b", "a", "child", 1), "status": "error"}]
    lines = trace_view.render(spans, colour=False, width=80).splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" in lines[1]
    assert lines[3].strip().startswith("error:")
