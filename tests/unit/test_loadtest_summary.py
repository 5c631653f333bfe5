"""What a run amounts to, and what Locust is told."""

from __future__ import annotations

import json
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from loadtest.events import fire
from loadtest.measure import Measurement
from loadtest.models import NotServing, served_model
from loadtest.percentiles import percentile
from loadtest.prompts import SYSTEM, PromptMix
from loadtest.records import Record, read_records
from loadtest.report import to_json, to_table
from loadtest.summary import Slo, summarise
from loadtest.target import NoTarget, find_target

GOOD = Measurement("", 200, 0.1, 0.2, 1.2, 0.1, (0.1,) * 10, output_tokens=11, prompt_tokens=20, cached_tokens=10)
SLOW = Measurement("", 200, 0.1, 2.0, 4.0, 0.2, (0.2,) * 10, output_tokens=11, prompt_tokens=20)
SHORT = Measurement("", 200, 0.1, 0.3, 0.3, None, (), output_tokens=1)
CUT = Measurement("stream cut: no [DONE]", 200, 0.1, 0.2, 0.5, 0.1, (0.1,), output_tokens=3)
REFUSED = Measurement("HTTP 429 queue_full", 429, 0.01)
SLO = Slo(ttft_ms=1000, tpot_ms=150)


def run_of(*measurements: Measurement, lag_s: float = 0.0) -> list[Record]:
    return [Record(float(at), lag_s, measurement) for at, measurement in enumerate(measurements)]


def test_goodput_needs_every_slo_and_attainment_counts_the_failed():
    summary = summarise(run_of(GOOD, SLOW, SHORT, CUT, REFUSED), SLO)
    assert (summary.requests, summary.failed) == (5, 2)
    assert summary.wall_s == pytest.approx(5.0)  # the slow one, sent at 1 s, ended last
    assert summary.goodput_requests_per_s == pytest.approx(2 / 5.0)
    assert summary.goodput_tokens_per_s == pytest.approx(12 / 5.0)
    assert summary.attainment == pytest.approx(2 / 5)
    assert summary.failures == {"stream cut: no [DONE]": 1, "HTTP 429 queue_full": 1}


def test_percentiles_are_over_the_successful_only():
    summary = summarise(run_of(GOOD, SLOW, CUT), SLO)
    assert summary.latencies_ms["TTFT"].count == 2
    assert summary.latencies_ms["TTFT"].p50 == pytest.approx(1100.0)
    assert summary.latencies_ms["ITL"].count == 20
    assert summary.cached_prompt_share == pytest.approx(0.25)


def test_a_late_dispatcher_is_warned_about():
    assert summarise(run_of(GOOD, lag_s=0.011), SLO).dispatch_lag_too_large
    assert not summarise(run_of(GOOD, lag_s=0.009), SLO).dispatch_lag_too_large
    assert "the load machine is the bottleneck" in to_table(summarise(run_of(GOOD, lag_s=0.011), SLO))


@pytest.mark.parametrize(("requests", "unsure"), [(19, "p95 and p99"), (20, "p99"), (99, "p99"), (100, "")])
def test_percentiles_of_too_few_requests_are_warned_about(requests: int, unsure: str):
    table = to_table(summarise(run_of(*[GOOD] * requests), SLO))
    assert (f"too few for {unsure}:" in table) if unsure else ("too few" not in table)


def test_an_all_failed_run_still_gives_a_table_and_json():
    summary = summarise(run_of(CUT, REFUSED), SLO)
    assert "failed 1x: HTTP 429 queue_full" in to_table(summary)
    assert json.loads(to_json(summary))["latencies_ms"]["TTFT"]["p50"] is None


def test_an_empty_run_is_an_error_not_a_zero():
    with pytest.raises(ValueError, match="no answer ended"):
        summarise([], SLO)


def test_percentile_interpolates():
    assert percentile([4.0, 1.0, 3.0, 2.0], 50) == pytest.approx(2.5)
    assert percentile([1.0, 2.0], 99) == pytest.approx(1.99)
    assert percentile([], 50) is None


def test_records_come_back_as_they_were_written():
    records = run_of(GOOD, REFUSED)
    assert read_records(json.dumps(asdict(record)) for record in records) == records


class Hook:
    def __init__(self) -> None:
        self.fired: list[dict] = []

    def fire(self, **event: object) -> None:
        self.fired.append(event)


def fired(measurement: Measurement) -> list[tuple[str, str, float, bool]]:
    hook = Hook()
    fire(hook, "chat", measurement)
    return [
        (e["request_type"], e["name"], pytest.approx(e["response_time"]), e["exception"] is not None)
        for e in hook.fired
    ]


def test_a_good_request_fires_each_metric_once_and_itl_as_mean_and_max():
    assert fired(GOOD) == [
        ("HTTP", "chat", 100.0, False),
        ("E2E", "chat", 1200.0, False),
        ("TTFT", "chat", 200.0, False),
        ("TPOT", "chat", 100.0, False),
        ("ITL", "chat mean", 100.0, False),
        ("ITL", "chat max", 100.0, False),
    ]


def test_a_failed_request_fails_exactly_one_event():
    assert fired(CUT) == [("HTTP", "chat", 100.0, False), ("E2E", "chat", 500.0, True)]
    assert fired(REFUSED) == [("HTTP", "chat", 10.0, True)]
    assert fired(Measurement("no answer: refused", 0, None)) == [("HTTP", "chat", 0.0, True)]


def test_prompts_are_seeded_varied_and_share_their_system_prompt():
    first, second = PromptMix(3), PromptMix(3)
    chats = [next(first) for _ in range(50)]
    assert chats == [next(second) for _ in range(50)]
    assert {chat[0]["content"] for chat in chats} == {SYSTEM}
    assert len({chat[1]["content"] for chat in chats}) > 25


def test_a_gateway_that_is_away_or_refuses_the_key_is_named_before_the_run():
    with pytest.raises(NotServing, match=r"http://127\.0\.0\.1:1 does not answer"):
        served_model("http://127.0.0.1:1", "k")

    class Refuses(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(401)

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Refuses) as server:
        Thread(target=server.handle_request).start()
        with pytest.raises(NotServing, match=r"refuses the API key \(401\)"):
            served_model(f"http://127.0.0.1:{server.server_port}", "k")


def test_the_target_is_the_environments_else_the_local_stacks(tmp_path):
    with pytest.raises(NoTarget, match="make up"):
        find_target({}, tmp_path)
    (tmp_path / ".tokenpath").mkdir()
    stack = {"urls": {"gateway": "http://127.0.0.1:1/"}, "api_key": "k", "ready": True}
    record = tmp_path / ".tokenpath" / "stack.json"
    record.write_text(json.dumps(stack))
    assert find_target({}, tmp_path).url == "http://127.0.0.1:1"
    assert find_target({"TOKENPATH_URL": "http://h:2"}, tmp_path).url == "http://h:2"
    record.write_text(json.dumps({**stack, "ready": False}))
    with pytest.raises(NoTarget, match="half started"):
        find_target({}, tmp_path)
