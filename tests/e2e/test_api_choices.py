"""Several choices and prompts, and the sampling fields whose meaning can be seen with a scripted engine."""

from __future__ import annotations

import asyncio

import pytest

from tests.e2e.api import MODES, Api, Mode, script

UNEQUAL = script(
    choices=[
        {"pieces": ["x"]},
        {"pieces": ["x", " DE"], "itl_ms": 5},
        {"pieces": ["x", " DE", "F"], "finish": "length"},
        {"pieces": ["F"], "repeat": 50, "itl_ms": 1},
    ]
)


@pytest.mark.parametrize("mode", MODES, ids=str)
class TestChoices:
    async def test_b013_four_choices_of_unequal_length(self, api: Api, mode: Mode) -> None:
        """B013: indices 0 to 3, each with its own end; completion tokens add up and the prompt counts once."""
        answer = await api.ask(mode, UNEQUAL, n=4, max_tokens=20)
        assert answer.texts == ["x", "x DE", "x DEF", "F" * 20]
        assert answer.finish == {0: ["stop"], 1: ["stop"], 2: ["length"], 3: ["length"]}
        alone = await api.ask(mode, UNEQUAL, max_tokens=20)
        assert alone.usage is not None
        assert answer.usage is not None
        assert answer.usage["prompt_tokens"] == alone.usage["prompt_tokens"]
        assert answer.usage["completion_tokens"] == 2 + 3 + 3 + 20

    async def test_b013_numbers_of_choices_that_are_refused(self, api: Api, mode: Mode) -> None:
        for n in (0, -1, 129, 10**6, 1.5, "2"):
            async with asyncio.timeout(1):
                answer = await api.ask(mode, UNEQUAL, n=n)
            assert (answer.status, answer.error["param"]) == (400, "n"), n

    async def test_b013_as_many_choices_as_are_allowed(self, api: Api, mode: Mode) -> None:
        answer = await api.ask(mode, script(pieces=["x", " DE"]), n=128)
        assert answer.texts == ["x DE"] * 128
        assert all(reasons == ["stop"] for reasons in answer.finish.values())

    async def test_a_failing_choice_fails_the_request(self, api: Api, mode: Mode) -> None:
        prompt = script(choices=[{"pieces": ["x"] * 9, "itl_ms": 2}, {"pieces": ["x"] * 9, "fail_after": 3}])
        answer = await api.ask(mode, prompt, n=2)
        assert answer.status == (200 if mode.stream else 500)
        if mode.stream:
            assert "error" in answer.chunks[-1]

    async def test_min_tokens_and_ignore_eos(self, api: Api, mode: Mode) -> None:
        """The script's end-of-sequence token does not end the answer early."""
        short = script(pieces=["x", " DE"])
        answer = await api.ask(mode, short, ignore_eos=True, max_tokens=9)
        assert answer.finish_reason == "length"
        assert answer.usage is not None
        assert answer.usage["completion_tokens"] == 9
        answer = await api.ask(mode, short, min_tokens=5, max_tokens=9)
        assert answer.usage is not None
        assert 5 <= answer.usage["completion_tokens"] <= 9
        refused = await api.ask(mode, short, min_tokens=10, max_tokens=9)
        assert (refused.status, refused.error["param"]) == (400, "min_tokens")

    async def test_seeds_of_any_size_are_taken(self, api: Api, mode: Mode) -> None:
        for seed in (0, -1, 2**31, 2**63 - 1, -(2**63)):
            assert (await api.ask(mode, script(pieces=["x"]), seed=seed)).text == "x"
        refused = await api.ask(mode, script(pieces=["x"]), seed=2**63)
        assert (refused.status, refused.error["param"]) == (400, "seed")

    async def test_unknown_fields_are_taken_and_known_ones_that_cannot_be_honoured_are_not(
        self, api: Api, mode: Mode
    ) -> None:
        harmless = {"unheard_of": {"a": [1]}, "user": "u", "service_tier": "auto", "priority": 3, "stop": None}
        assert (await api.ask(mode, script(pieces=["x"]), **harmless)).text == "x"
        refused = await api.ask(mode, script(pieces=["x"]), response_format={"type": "json_object"})
        assert (refused.status, refused.error["param"]) == (400, "response_format")


@pytest.mark.parametrize("stream", [False, True])
async def test_logprobs_of_a_chat(api: Api, stream: bool) -> None:
    """Every token of the text once, with the alternatives asked for; the bytes joined are the text."""
    prompt = script(bytes="한é x".encode().hex())
    answer = await api.ask(Mode("chat", stream), prompt, logprobs=True, top_logprobs=2)
    tokens = [
        token
        for chunk in answer.chunks
        for choice in chunk["choices"]
        for token in (choice["logprobs"] or {"content": []})["content"]
    ]
    assert bytes(byte for token in tokens for byte in token["bytes"]).decode() == answer.text == "한é x"
    assert all(token["logprob"] <= 0 and len(token["top_logprobs"]) == 2 for token in tokens)
    assert answer.finish_reason == "stop"
    without = await api.ask(Mode("chat", stream), prompt)
    assert all(choice["logprobs"] is None for chunk in without.chunks for choice in chunk["choices"])


@pytest.mark.parametrize("stream", [False, True])
async def test_logprobs_of_completions(api: Api, stream: bool) -> None:
    answer = await api.ask(Mode("completions", stream), script(pieces=["x", " DE", "F"]), logprobs=3)
    parts = [choice["logprobs"] for chunk in answer.chunks for choice in chunk["choices"]]
    assert [token for part in parts for token in part["tokens"]] == ["x", " DE", "F"]
    assert [offset for part in parts for offset in part["text_offset"]] == [0, 1, 4]
    assert all(len(top) == 3 for part in parts for top in part["top_logprobs"])
    assert [value for part in parts for value in part["token_logprobs"]] == [-0.5] * 3
    assert answer.finish_reason == "stop"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_list_of_prompts(api: Api, stream: bool) -> None:
    """Choice i belongs to prompt i // n; the usage is that of all prompts."""
    pieces = [["x"], ["x", " DE"], ["F", "F", "F"]]
    prompts = [script(pieces=piece, itl_ms=2) for piece in pieces]
    answer = await api.ask(Mode("completions", stream), prompts, n=2)
    assert answer.texts == ["x", "x", "x DE", "x DE", "FFF", "FFF"]
    assert all(reasons == ["stop"] for reasons in answer.finish.values())
    assert answer.usage is not None
    assert answer.usage["completion_tokens"] == 2 * (2 + 3 + 4)
    singles = [await api.ask(Mode("completions", False), prompt) for prompt in prompts]
    assert answer.usage["prompt_tokens"] == sum((single.usage or {})["prompt_tokens"] for single in singles)


async def test_prompts_as_token_ids(api: Api) -> None:
    text = script(pieces=["x", " DE"])
    tokens = (await api.http.post("/tokenize", json={"prompt": text})).json()["tokens"]
    for prompt in (tokens, [tokens]):
        answer = await api.ask(Mode("completions", False), prompt)
        assert answer.text == "x DE"
        assert answer.usage is not None
        assert answer.usage["prompt_tokens"] == len(tokens)
