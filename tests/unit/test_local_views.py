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
    for shown in ("req_1", "Time to first token: 30.00 ms", "Total time: 90.00 ms", "66.7%", "33.3%", "100.0%"):
        assert shown in text
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


@pytest.mark.parametrize("width", [60, 100, 200])
def test_a_waterfall_keeps_to_the_width_it_has(width: int) -> None:
    lines = journey_view.render(JOURNEY, colour=False, width=width).splitlines()
    assert all(len(line) <= max(width, 100) for line in lines if "prefill-0" in line)


def test_a_trace_is_a_tree_with_orphans_as_roots() -> None:
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

    spans = [
        span("c", "b", "grandchild", 2),
        span("a", "", "root", 0),
        span("b", "a", "child", 1),
        span("x", "gone", "orphan", 3),
    ]
    text = trace_view.render(spans, colour=False)
    labels = [line.partition("  gateway ")[0].rstrip() for line in text.splitlines()[1:]]
    assert labels == ["root", "└─ child", "   └─ grandchild", "orphan"]
    assert "5.00 ms" in text
