"""The arithmetic of journeys, over the real path: parts add up, nothing much is unaccounted, counts agree."""

from __future__ import annotations

import asyncio

import pytest

from tests.e2e.api import MODES, Api, Json, Mode, script
from tests.e2e.ledger import settled_row

STREAM = Mode("chat", True)
ALWAYS = {"auth", "receive", "tokenize", "route", "queue", "decode", "detokenize", "settle", "respond"}
APART = {"prefill", "kv_publish", "kv_fetch"}
ROUNDING_MS = 1e-3
# On a busy machine a process can lose the CPU for longer than this anywhere; most requests must do without.
UNACCOUNTED_SHARE, UNACCOUNTED_MS, MOST = 0.02, 1.0, 0.8
SAID: Json = {"pieces": ["x", " DE", "F"], "ttft_ms": 10, "itl_ms": 5}

KINDS: dict[str, tuple[Mode, Json, Json]] = {
    **{str(mode): (mode, SAID, {}) for mode in MODES},
    "choices": (STREAM, SAID, {"n": 3}),
    "stop string": (STREAM, SAID, {"stop": " DEF"}),
    "one token": (STREAM, SAID, {"max_tokens": 1}),
    "many tokens": (STREAM, {**SAID, "repeat": 30, "itl_ms": 1}, {}),
    "slow prefill": (STREAM, {**SAID, "ttft_ms": 60}, {}),
}


def check_split(journey: Json, name: str) -> bool:
    """Parts sum to the whole and shares to 1. Returns whether little enough of it is unaccounted."""
    whole, parts = journey[f"{name}_ms"], journey[name]["parts"]
    assert sum(part["ms"] for part in parts) == pytest.approx(whole, abs=ROUNDING_MS)
    assert sum(part["share"] for part in parts) == pytest.approx(1, abs=1e-6)
    assert all(part["ms"] >= 0 for part in parts)
    assert len({part["name"] for part in parts}) == len(parts)
    return part_ms(journey, name, "unaccounted") <= max(UNACCOUNTED_MS, UNACCOUNTED_SHARE * whole)


def check_stages(journey: Json) -> None:
    """Every stage lies inside the request, and its parts inside it."""
    for stage in journey["stages"]:
        assert stage["duration_ms"] >= 0
        assert stage["start_ms"] >= -UNACCOUNTED_MS
        assert stage["start_ms"] + stage["duration_ms"] <= journey["total_ms"] + UNACCOUNTED_MS
        assert sum(part["ms"] for part in stage["parts"]) <= stage["duration_ms"] + ROUNDING_MS


def one(journey: Json, stage: str) -> Json:
    (found,) = [entry for entry in journey["stages"] if entry["stage"] == stage]
    return dict(found)


def part_ms(journey: Json, name: str, *prefixes: str) -> float:
    return sum(float(part["ms"]) for part in journey[name]["parts"] if part["name"].startswith(prefixes))


@pytest.mark.parametrize("mode_name", ["disaggregated", "aggregated"])
async def test_parts_add_up_for_every_kind_of_request(api: Api, mode_name: str) -> None:
    """TTFT and total are split into parts that sum to them; unaccounted is at most 2% or 1 ms."""
    accounted: list[bool] = []
    for kind, (mode, said, fields) in KINDS.items():
        for _ in range(3):
            answer = await api.ask(mode, script(**said), {"x-tokenpath-mode": mode_name}, **fields)
            journey = await api.journey(answer.request_id)
            assert (journey["mode"], journey["outcome"]) == (mode_name, "done"), kind
            names = {stage["stage"] for stage in journey["stages"]}
            expected = ALWAYS | (APART if mode_name == "disaggregated" else set())
            if kind == "one token":  # made by prefill; nothing is left for decode
                expected -= {"decode", "kv_fetch"} if mode_name == "disaggregated" else set()
            assert names >= expected, kind
            check_stages(journey)
            accounted += [check_split(journey, name) for name in ("ttft", "total")]
    assert sum(accounted) >= MOST * len(accounted)


async def test_many_requests_at_once(api: Api) -> None:
    """Under load the parts of each still add up."""
    answers = await asyncio.gather(
        *(api.ask(STREAM, script(**{**SAID, "repeat": 5}), n=1 + number % 3) for number in range(16))
    )
    accounted: list[bool] = []
    for answer in answers:
        journey = await api.journey(answer.request_id)
        check_stages(journey)
        accounted += [check_split(journey, name) for name in ("ttft", "total")]
    assert sum(accounted) >= MOST * len(accounted)


async def test_delays_show_up_where_they_were_made(api: Api) -> None:
    """A slow first token is prefill's, slow later ones are decode's, and neither is anybody else's."""
    prompt = script(pieces=["x", " DE", "F"], ttft_ms=150, itl_ms=100)
    for mode_name, first_stage in (("disaggregated", "prefill"), ("aggregated", "decode")):
        answer = await api.ask(STREAM, prompt, {"x-tokenpath-mode": mode_name})
        journey = await api.journey(answer.request_id)
        assert 145 <= part_ms(journey, "ttft", first_stage) <= journey["ttft_ms"]
        # Three more tokens: two pieces and the end. Fetching pages may hide a little of the first one's delay.
        assert part_ms(journey, "total", "decode") - part_ms(journey, "ttft", "decode") >= 270
        assert journey["total_ms"] - part_ms(journey, "total", "prefill", "decode") < 150


async def test_a_long_wait_in_the_queue_is_the_queues(api: Api) -> None:
    """Requests that wait for a slot say so."""
    prompt = script(pieces=["x"], repeat=20, itl_ms=10)
    holders = [asyncio.create_task(api.ask(STREAM, prompt, n=32)) for _ in range(2)]
    await asyncio.sleep(0.1)
    waited = await api.ask(STREAM, prompt)
    await asyncio.gather(*holders)
    journey = await api.journey(waited.request_id)
    assert part_ms(journey, "ttft", "queue") > 50
    assert one(journey, "queue")["duration_ms"] > 50


async def test_counts_agree_with_the_usage_and_the_ledger(api: Api) -> None:
    answer = await api.ask(STREAM, script(**SAID) + " warm me up" * 20, n=2)
    again = await api.ask(STREAM, script(**SAID) + " warm me up" * 20, n=2)
    assert again.usage is not None
    journey = await api.journey(again.request_id)
    row = await settled_row(api.stack, again.request_id)
    assert journey["usage"] == again.usage
    assert journey["trace_id"] == again.headers["x-trace-id"]
    assert journey["cost_usd"] == pytest.approx(int(row["cost_nano_usd"]) / 1e9)
    cached = again.usage["prompt_tokens_details"]["cached_tokens"]
    assert cached > 0
    prefill = one(journey, "prefill")
    assert prefill["cached_tokens"] == cached
    assert prefill["tokens"] == again.usage["prompt_tokens"] - cached
    assert one(journey, "tokenize")["tokens"] == again.usage["prompt_tokens"]
    assert one(journey, "detokenize")["tokens"] == again.usage["completion_tokens"]
    # The first token of each choice is prefill's.
    assert one(journey, "decode")["tokens"] == again.usage["completion_tokens"] - 2
    cold = await api.journey(answer.request_id)
    assert one(cold, "kv_publish")["bytes"] > 0
    assert one(cold, "kv_fetch")["bytes"] > 0


async def test_a_client_that_leaves_has_a_journey_too(api: Api) -> None:
    async with api.open(STREAM, script(pieces=["x"], repeat=500, itl_ms=10), max_tokens=500) as response:
        events = response.aiter_raw()
        for _ in range(3):
            await anext(events)
    request_id = response.headers["x-tokenpath-request-id"]
    row = await settled_row(api.stack, request_id)
    journey = await api.journey(request_id)
    assert journey["outcome"] == row["outcome"] == "aborted"
    assert journey["usage"]["completion_tokens"] == int(row["completion_tokens"])
    check_split(journey, "ttft")
    check_split(journey, "total")


async def test_the_decision_says_why(api: Api) -> None:
    """Every worker that was considered, with its score and the terms that make it up."""
    answer = await api.ask(STREAM, script(**SAID))
    decision = (await api.journey(answer.request_id))["decision"]
    assert decision["policy"] == "prefix_minus_load"
    assert {score["worker"] for score in decision["scores"]} == {"prefill-0", "decode-0", "decode-1"}
    assert all(score["terms"] for score in decision["scores"])


async def test_journeys_are_for_their_tenant(api: Api) -> None:
    response = await api.http.get("/v1/journeys/req_00000000000000000000000000")
    assert response.status_code == 404
    response = await api.http.get("/v1/journeys/x", headers={"authorization": "Bearer nope"})
    assert response.status_code == 401
