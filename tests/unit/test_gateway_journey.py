"""Time split into parts: they add up, and nothing counts twice."""

import time
from random import Random

from services.gateway.journey.recorder import Recorder
from services.gateway.journey.split import Interval, split
from services.gateway.journey.store import JourneyStore
from tests.fakes import report
from tokenpath.v1.common_pb2 import StageReport


def as_dict(parts: list[object]) -> dict[str, int]:
    return {part.name: part.duration_ns for part in parts}  # type: ignore[attr-defined]


def test_parts_add_up_exactly_whatever_overlaps() -> None:
    random = Random(7)
    for _ in range(200):
        intervals = []
        for index in range(random.randrange(8)):
            start = random.randrange(-50, 150)
            parts = tuple((f"p{part}", random.randrange(40)) for part in range(random.randrange(3)))
            end, rank = start + random.randrange(80), random.randrange(4)
            intervals.append(Interval(f"i{index}", start, end, rank, parts, ("p0",)))
        parts = split(0, 100, intervals)
        assert sum(part.duration_ns for part in parts) == 100
        assert all(part.duration_ns >= 0 for part in parts)


def test_the_inner_stage_owns_its_time_and_the_call_what_is_left() -> None:
    intervals = [Interval("route.rpc", 10, 30, 0), Interval("route", 15, 25, 10)]
    assert as_dict(split(0, 40, intervals)) == {"route.rpc": 10, "route": 10, "unaccounted": 20}


def test_a_stage_is_split_into_its_parts_and_a_rest() -> None:
    intervals = [Interval("decode", 0, 100, 1, (("queue", 10), ("compute", 70), ("idle", 0)))]
    assert as_dict(split(0, 100, intervals)) == {
        "decode.queue": 10,
        "decode.compute": 70,
        "decode": 20,
        "unaccounted": 0,
    }


def test_a_stage_cut_short_keeps_only_parts_that_are_known_to_come_first() -> None:
    parts = (("queue", 10), ("prefill_compute", 30), ("decode_compute", 55))
    cut = Interval("decode", 0, 100, 1, parts, ("queue", "prefill_compute"))
    assert as_dict(split(0, 45, [cut])) == {
        "decode.queue": 10,
        "decode.prefill_compute": 30,
        "decode": 5,
        "unaccounted": 0,
    }
    assert as_dict(split(0, 45, [Interval("decode", 0, 100, 1, parts)])) == {"decode": 45, "unaccounted": 0}


def recorded(reports: list[StageReport], milliseconds: float) -> Recorder:
    recorder = Recorder()
    with recorder.call("prefill") as entry:
        entry.reports.extend(reports)
        end = time.perf_counter() + milliseconds / 1e3
        while time.perf_counter() < end:
            pass
    return recorder


def test_a_report_from_a_clock_of_another_day_stays_inside_its_call() -> None:
    for skew_ns in (-86_400 * 10**9, 86_400 * 10**9):
        recorder = recorded([report("prefill", 2, time.time_ns() + skew_ns)], 4)
        parts = as_dict(recorder.total_parts(recorder.elapsed_ns()))  # type: ignore[arg-type]
        assert parts["prefill"] == 2_000_000
        assert parts["prefill.rpc"] >= 1_900_000


def test_a_report_longer_than_its_call_is_cut() -> None:
    recorder = recorded([report("prefill", 5_000)], 3)
    total = recorder.elapsed_ns()
    parts = as_dict(recorder.total_parts(total))  # type: ignore[arg-type]
    assert sum(parts.values()) == total
    assert parts["prefill"] <= total


def test_publishing_while_computing_costs_nothing_extra() -> None:
    start = time.time_ns()
    recorder = recorded([report("prefill", 3, start), report("kv_publish", 4, start)], 6)
    parts = as_dict(recorder.total_parts(recorder.elapsed_ns()))  # type: ignore[arg-type]
    assert parts["prefill"] == 3_000_000
    assert 0 < parts["kv_publish"] <= 1_100_000


def test_prompts_of_one_request_are_told_along_the_first_and_the_last() -> None:
    recorder = Recorder()
    with recorder.call("stream", track=0):
        pass
    with recorder.call("prefill", track=1):
        recorder.content_sent(1)
    recorder.track_ended(0)
    assert "prefill.rpc" in as_dict(recorder.ttft_parts())  # type: ignore[arg-type]
    total = as_dict(recorder.total_parts(recorder.elapsed_ns()))  # type: ignore[arg-type]
    assert "stream.rpc" in total
    assert "prefill.rpc" not in total


def test_the_store_is_bounded_and_keeps_tenants_apart() -> None:
    store = JourneyStore(2)
    for number in range(3):
        store.put("acme", f"req_{number}", lambda number=number: {"number": number})
    assert store.get("acme", "req_0") is None
    assert store.get("acme", "chatcmpl-req_2") == {"number": 2}
    assert store.get("globex", "req_2") is None
    assert store.get("", "nope") is None
