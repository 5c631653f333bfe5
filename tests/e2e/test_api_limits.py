"""Numbers at and beyond their limits: lengths, budgets and sampling values. Nothing is cut in silence or charged."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from tests.e2e.api import MODES, Api, Mode, script
from tests.e2e.ledger import ledger_length

BRIEF = script(pieces=["x", " DE", "F"])


@pytest.fixture
async def context(api: Api) -> int:
    """The model's length in tokens."""
    models = (await api.http.get("/v1/models")).json()
    return int(models["data"][0]["max_model_len"])


async def prompt_of(api: Api, mode: Mode, tokens: int) -> str:
    """Text that is exactly so many tokens long with this endpoint, chat template included."""
    empty = (await api.ask(Mode(mode.endpoint, False), "a", max_tokens=1)).usage
    assert empty is not None
    return "a" + " a" * (tokens - empty["prompt_tokens"])


@pytest.mark.parametrize("mode", MODES, ids=str)
class TestLengths:
    async def test_b004_a_prompt_that_does_not_fit(self, api: Api, mode: Mode, context: int) -> None:
        """B004: 400 with its code in both modes, before any SSE byte, and no charge."""
        before = await ledger_length(api.stack)
        for tokens in (context + 1, context):  # the second leaves no room for the one token that is asked for
            answer = await api.ask(mode, await prompt_of(api, mode, tokens), max_tokens=1)
            assert answer.status == 400
            assert answer.error["code"] == "context_length_exceeded"
            before += 1  # prompt_of's own question
        assert await ledger_length(api.stack) == before

    async def test_b005_an_answer_budget_at_the_edge(self, api: Api, mode: Mode, context: int) -> None:
        """B005: what fits is served, what does not is refused at once, by the same rule in both modes."""
        usage = (await api.ask(mode, BRIEF)).usage
        assert usage is not None
        room = context - usage["prompt_tokens"]
        assert (await api.ask(mode, BRIEF, max_tokens=room)).text == "x DEF"
        for too_many in (room + 1, 2**31, 2**63):
            began = time.monotonic()
            answer = await api.ask(mode, BRIEF, max_tokens=too_many)
            assert time.monotonic() - began < 1
            assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded"), too_many

    async def test_a_prompt_that_just_fits_is_served_whole(self, api: Api, mode: Mode, context: int) -> None:
        answer = await api.ask(mode, await prompt_of(api, mode, context - 1), max_tokens=1)
        assert answer.finish_reason == "length"
        assert answer.usage is not None
        assert answer.usage["total_tokens"] == context

    async def test_b009_max_tokens_that_is_no_count(self, api: Api, mode: Mode) -> None:
        for value in (0, -1, "5", 1.5, True):
            for name in ("max_tokens", "max_completion_tokens"):
                answer = await api.ask(mode, BRIEF, **{name: value})
                assert (answer.status, answer.error["param"]) == (400, name), value

    async def test_b009_one_token_and_null(self, api: Api, mode: Mode) -> None:
        one = await api.ask(mode, BRIEF, max_tokens=1)
        assert (one.text, one.finish_reason) == ("x", "length")
        assert one.usage is not None
        assert one.usage["completion_tokens"] == 1
        null = await api.ask(mode, BRIEF, max_tokens=None)
        assert (null.text, null.finish_reason) == ("x DEF", "stop")


async def test_b009_default_budgets(api: Api) -> None:
    """Completions end after OpenAI's 16 tokens; a chat may go on as long as there is room."""
    endless = script(pieces=["x"], repeat=100, finish="length")
    completion = await api.ask(Mode("completions", False), endless)
    assert (completion.text, completion.finish_reason) == ("x" * 16, "length")
    assert (await api.ask(Mode("chat", False), endless)).text == "x" * 100


SICK = ["NaN", "Infinity", "-Infinity", "-1", "2.1", "1e400"]


class TestB011:
    """B011: values that are no numbers or out of range are 400, and a neighbour's stream does not notice."""

    @pytest.mark.parametrize("mode", MODES, ids=str)
    async def test_sick_values_beside_a_healthy_stream(self, api: Api, mode: Mode) -> None:
        healthy = asyncio.create_task(
            api.ask(Mode("chat", True), script(pieces=["x", " DE"], repeat=20, itl_ms=5), max_tokens=60)
        )
        cases = [("temperature", value) for value in SICK]
        cases += [("top_p", value) for value in ("NaN", "0", "1.1", "-0.1")]
        cases += [("frequency_penalty", "10"), ("presence_penalty", "-10"), ("repetition_penalty", "0")]
        for name, value in cases:
            body = json.dumps(api.body(mode, BRIEF))[:-1] + f', "{name}": {value}}}'
            answer = await api.send(mode.endpoint, body.encode())
            assert answer.status == 400, (name, value)
            # What is no JSON at all has no field to blame.
            assert answer.error["param"] == name or value in ("NaN", "Infinity", "-Infinity", "1e400"), (name, value)
        assert (await healthy).text == "x DE" * 20

    @pytest.mark.parametrize("mode", MODES, ids=str)
    async def test_a_tiny_temperature_is_greedy(self, api: Api, mode: Mode) -> None:
        assert (await api.ask(mode, BRIEF, temperature=1e-9)).text == "x DEF"
        assert (await api.ask(mode, BRIEF, temperature=0, top_p=1e-9)).text == "x DEF"


async def test_a_million_tokens_are_refused_at_once(api: Api) -> None:
    """Kind of B004 and B073: a prompt far beyond the model costs the gateway no seconds of tokenising."""
    began = time.monotonic()
    answer = await api.ask(Mode("completions", True), "long " * 1_000_000)
    assert time.monotonic() - began < 2
    assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")


async def test_a_body_of_a_million_little_things_stops_no_stream(api: Api) -> None:
    messages = b'{"role":"user","content":""},' * 1_000_000
    body = b'{"model":"%s","messages":[%s]}' % (api.model.encode(), messages[:-1])
    sending = asyncio.create_task(api.send("chat", body))
    longest = 0.0
    while not sending.done():
        began = time.monotonic()
        assert (await api.http.get("/health")).status_code == 200
        longest = max(longest, time.monotonic() - began)
    answer = await sending
    assert answer.status == 400
    assert answer.error["code"] == "context_length_exceeded"
    assert longest < 1.0
