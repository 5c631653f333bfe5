"""The default model through all seven services: what a newcomer sees."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from uuid import uuid4

import pytest

from tests.e2e.api import MODES, PATHS, Answer, Api, Json, Mode, sse_chunks
from tests.e2e.metrics import metric

pytestmark = [pytest.mark.model, pytest.mark.timeout(240)]

QUESTION = "What is the capital of France?"
STREAM, WHOLE = Mode("chat", True), Mode("chat", False)
GREEDY: Json = {"temperature": 0, "max_tokens": 24}
TOGETHER = {"x-tokenpath-mode": "aggregated"}
APART = {"x-tokenpath-mode": "disaggregated"}
ALWAYS = {"auth", "receive", "tokenize", "route", "queue", "decode", "detokenize", "settle", "respond"}


def cached(answer: Answer) -> int:
    assert answer.usage is not None
    return int(answer.usage["prompt_tokens_details"]["cached_tokens"])


async def test_it_knows_the_capital_of_france_in_every_way(model_api: Api) -> None:
    """Streamed and whole, one worker or two: the same greedy answer, and it names Paris."""
    texts = {
        (await model_api.ask(mode, QUESTION, how, **GREEDY)).text
        for mode in (STREAM, WHOLE)
        for how in (APART, TOGETHER)
    }
    (text,) = texts
    assert "Paris" in text


async def test_one_worker_and_two_say_the_same_for_long_prompts(model_api: Api) -> None:
    """Prompts over several pages, the last one full, partly filled or of one token, cold and then cached."""
    for words in (16, 17, 40):
        prompt = [{"role": "user", "content": f"{uuid4().hex} Tell me about the sea, the wind" + " and so on" * words}]
        apart, together, again = [
            await model_api.ask(WHOLE, prompt, how, temperature=0, max_tokens=12) for how in (APART, TOGETHER, APART)
        ]
        assert apart.text == together.text == again.text
        assert cached(again) > cached(apart)


async def test_a_seed_repeats_an_answer(model_api: Api) -> None:
    """One by one: in half precision the size of a batch shows in the last digits, and chance makes much of them."""
    fields: Json = {"temperature": 1.2, "top_p": 0.95, "seed": 7, "max_tokens": 16}
    texts = [(await model_api.ask(mode, "Once upon a time", **fields)).text for mode in (WHOLE, STREAM)]
    assert texts[0] == texts[1]
    assert (await model_api.ask(WHOLE, "Once upon a time", **{**fields, "seed": 8})).text != texts[0]
    choices = await model_api.ask(WHOLE, "Once upon a time", **fields, n=3)
    assert len(set(choices.texts)) == 3


async def test_answers_of_a_batch_stay_apart(model_api: Api) -> None:
    """Each is about its own question. (The model is too small to know each capital.)"""
    countries = ["France", "Italy", "Japan", "Germany", "Spain"]
    answers = await asyncio.gather(
        *(model_api.ask(STREAM, f"What is the capital of {country}?", **GREEDY) for country in countries)
    )
    for answer, country in zip(answers, countries, strict=True):
        assert {name for name in countries if name in answer.text} <= {country}


async def test_completions_go_on_with_the_text(model_api: Api) -> None:
    for stream in (False, True):
        answer = await model_api.ask(
            Mode("completions", stream), "The capital of France is", temperature=0, max_tokens=8
        )
        assert "Paris" in answer.text


async def test_logprobs_are_those_of_the_chosen_tokens(model_api: Api) -> None:
    answer = await model_api.ask(WHOLE, QUESTION, **GREEDY, logprobs=True, top_logprobs=3)
    for token in answer.chunks[0]["choices"][0]["logprobs"]["content"]:
        best = [other["logprob"] for other in token["top_logprobs"]]
        assert best == sorted(best, reverse=True)
        assert token["logprob"] == pytest.approx(best[0], abs=1e-4)  # greedy takes the best
        assert token["token"] == token["top_logprobs"][0]["token"]


@pytest.mark.parametrize("how", [APART, TOGETHER], ids=["apart", "together"])
async def test_the_second_time_the_prompt_is_cached(model_api: Api, how: dict[str, str]) -> None:
    messages = [{"role": "system", "content": f"{uuid4().hex} " * 8}, {"role": "user", "content": QUESTION}]
    cold = await model_api.ask(STREAM, messages, how, **GREEDY)
    warm = await model_api.ask(STREAM, messages, how, **GREEDY)
    assert warm.text == cold.text
    assert cached(cold) == 0
    assert warm.usage is not None
    assert 0 < warm.usage["prompt_tokens"] - cached(warm) <= 16


@pytest.mark.parametrize("how", [APART, TOGETHER], ids=["apart", "together"])
async def test_the_journey_has_all_stages_and_adds_up(model_api: Api, how: dict[str, str]) -> None:
    answer = await model_api.ask(STREAM, f"{uuid4().hex} {QUESTION}", how, temperature=0, max_tokens=48)
    journey = await model_api.journey(answer.request_id)
    names = {stage["stage"] for stage in journey["stages"]}
    assert names >= ALWAYS | ({"prefill", "kv_publish", "kv_fetch"} if how is APART else set())
    for name in ("ttft", "total"):
        parts = {part["name"]: part["ms"] for part in journey[name]["parts"]}
        assert sum(parts.values()) == pytest.approx(journey[f"{name}_ms"], abs=1e-3)
        assert parts["unaccounted"] <= max(1.0, 0.02 * journey[f"{name}_ms"])
    computed = sum(part["ms"] for part in journey["total"]["parts"] if "compute" in part["name"])
    assert computed > 0
    assert journey["cost_usd"] > 0


async def test_curl_shows_tokens_as_they_come(model_api: Api) -> None:
    """`curl -N` as in the README: the first byte is there well before the last."""
    curl = shutil.which("curl")
    if curl is None:
        pytest.skip("curl is not installed")
    body = json.dumps(model_api.body(STREAM, "Count to thirty.", temperature=0, max_tokens=48, ignore_eos=True))
    process = await asyncio.create_subprocess_exec(
        *(curl, "-sN", "--noproxy", "*", "-H", f"Authorization: Bearer {model_api.stack.api_key}"),
        *("-H", "Content-Type: application/json", "-d", body, model_api.stack.gateway_url + PATHS["chat"]),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    began, arrivals, raw = time.monotonic(), [], b""
    while piece := await process.stdout.read(65536):
        arrivals.append(time.monotonic() - began)
        raw += piece
    assert await process.wait() == 0
    assert len(sse_chunks(raw)) >= 48
    assert len(arrivals) >= 12
    assert arrivals[0] < 0.5 * arrivals[-1]


async def test_pages_travelled_and_none_was_lost(model_api: Api) -> None:
    """What the two workers of this stack exchanged in the tests above was fetched, not recomputed."""
    await model_api.ask(WHOLE, f"{uuid4().hex} " * 10, APART, **GREEDY)
    assert metric(model_api.stack, "decode-0", "tokenpath_kv_pages_total") > 0
    pages = (await model_api.http.get(model_api.stack.metrics_url("decode-0"))).text
    assert 'tokenpath_kv_pages_total{result="fetched"}' in pages
    for bad in ("missing", "corrupt", "mismatch", "unavailable"):
        assert f'tokenpath_kv_pages_total{{result="{bad}"}}' not in pages


@pytest.mark.parametrize("mode", MODES, ids=str)
async def test_stop_strings_of_real_text(model_api: Api, mode: Mode) -> None:
    answer = await model_api.ask(mode, QUESTION, temperature=0, max_tokens=40, stop=["Paris", "paris"])
    assert "aris" not in answer.text
