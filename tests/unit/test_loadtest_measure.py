"""The load harness's definitions, on exchanges whose times are known to the nanosecond."""

from __future__ import annotations

import json
from typing import Any

import pytest

from loadtest.measure import NS_PER_S, Arrival, Exchange, measure
from loadtest.sse import SseParser

ROLE = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}
FINISH = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
USAGE = {
    "choices": [],
    "usage": {"prompt_tokens": 10, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}},
}


def text(piece: str) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": piece}, "finish_reason": None}]}


def exchange(*events: tuple[float, Any], transport_error: str = "", status: int = 200) -> Exchange:
    """Events as (seconds after the request was sent, body or raw data)."""
    start = 7 * NS_PER_S
    arrivals = tuple(
        Arrival(start + round(at * NS_PER_S), body if isinstance(body, str) else json.dumps(body))
        for at, body in events
    )
    return Exchange(start, start + 1, status, "text/event-stream", arrivals, "", transport_error)


WHOLE = (
    (0.1, ROLE),
    (1.0, text("a")),
    (2.0, text("b")),
    (3.0, text("c")),
    (3.1, FINISH),
    (3.2, USAGE),
    (3.2, "[DONE]"),
)


def test_b101_ttft_is_the_first_text_not_headers_nor_role_and_e2e_the_last_text():
    result = measure(exchange(*WHOLE))
    assert result.ok
    assert result.ttft_s == pytest.approx(1.0)
    assert result.e2e_s == pytest.approx(3.0)
    assert result.itl_s == pytest.approx((1.0, 1.0))


def test_tpot_divides_by_the_tokens_of_the_usage_chunk_less_one():
    result = measure(exchange(*WHOLE))
    assert result.output_tokens == 5
    assert result.tpot_s == pytest.approx(2.0 / 4)
    assert (result.prompt_tokens, result.cached_tokens) == (10, 4)


def test_without_usage_every_text_counts_as_one_token():
    result = measure(exchange(*(event for event in WHOLE if event[1] is not USAGE)))
    assert result.output_tokens == 3
    assert result.tpot_s == pytest.approx(1.0)


def test_one_token_has_no_tpot():
    result = measure(exchange((1.0, text("a")), (1.0, FINISH), (1.0, "[DONE]")))
    assert result.ok
    assert result.tpot_s is None
    assert result.itl_s == ()


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        (WHOLE[:3], "stream cut: no finish_reason"),
        (WHOLE[:-1], "stream cut: no [DONE]"),
        ((*WHOLE[:2], (2.0, {"error": {"code": "worker_failed"}}), (2.0, "[DONE]")), "error event worker_failed"),
        (((1.0, "{not json"),), "data is not JSON"),
    ],
)
def test_b101_a_cut_stream_or_an_error_event_is_a_failure_although_the_status_is_200(events, reason):
    assert measure(exchange(*events)).failure == reason


def test_a_broken_connection_after_some_text_is_a_cut_stream():
    result = measure(exchange(*WHOLE[:3], transport_error="IncompleteRead"))
    assert result.failure == "stream cut: IncompleteRead"
    assert result.ttft_s == pytest.approx(1.0)


def test_a_refusal_names_its_status_and_code():
    refused = Exchange(0, 5, 429, "application/json", error_code="queue_full")
    assert measure(refused).failure == "HTTP 429 queue_full"


def test_no_headers_is_no_answer():
    assert measure(Exchange(0, transport_error="refused")).failure == "no answer: refused"


def test_a_whole_json_body_is_not_mistaken_for_a_stream():
    assert measure(Exchange(0, 5, 200, "application/json")).failure == "not an event stream: application/json"


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_sse_events_survive_any_cut(size):
    body = 'data: {"a":"é"}\n\n: ping\n\nevent: error\ndata: x\r\ndata: y\r\n\r\ndata:[DONE]\n\n'.encode()
    parser = SseParser()
    events = [event for at in range(0, len(body), size) for event in parser.feed(body[at : at + size])]
    assert events == ['{"a":"é"}', "x\ny", "[DONE]"]
