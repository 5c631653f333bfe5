"""Prompts that fit, and what the engine is asked."""

import time
from typing import Any

import pytest

from services.gateway.engine_request import Ask, engine_request, fold_seed
from services.gateway.errors import ApiError
from services.gateway.prompts import Prompt, chat_prompt, completion_prompts, prompt_tail
from services.gateway.validation.chat import ChatBody
from services.gateway.validation.completions import CompletionsBody
from services.tokenization.tokenizer import Tokenizer

LIMIT = 64


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load("smollm2")


async def completion(tokenizer: Tokenizer, prompt: Any, **fields: Any) -> Prompt:
    body = CompletionsBody.model_validate({"model": "m", "prompt": prompt, **fields})
    return (await completion_prompts(body, tokenizer, LIMIT))[0]


async def chat(tokenizer: Tokenizer, content: Any, **fields: Any) -> Prompt:
    body = ChatBody.model_validate({"model": "m", "messages": [{"role": "user", "content": content}], **fields})
    return await chat_prompt(body, tokenizer, LIMIT)


async def test_defaults_of_the_two_endpoints(tokenizer: Tokenizer) -> None:
    assert (await completion(tokenizer, [5] * 10)).max_tokens == 16
    prompt = await chat(tokenizer, "hi")
    assert prompt.max_tokens == LIMIT - len(prompt.token_ids)


@pytest.mark.parametrize("max_tokens", [55, 2**31, 2**63])
async def test_b005_more_than_fits_is_refused_with_the_numbers(tokenizer: Tokenizer, max_tokens: int) -> None:
    assert (await completion(tokenizer, [5] * 10, max_tokens=54)).max_tokens == 54
    with pytest.raises(ApiError) as caught:
        await completion(tokenizer, [5] * 10, max_tokens=max_tokens)
    assert caught.value.code == "context_length_exceeded"
    assert "10 prompt tokens" in caught.value.message
    assert str(LIMIT) in caught.value.message


@pytest.mark.parametrize("length", [LIMIT, LIMIT + 1])
async def test_b004_a_prompt_without_room_for_one_token_is_refused(tokenizer: Tokenizer, length: int) -> None:
    with pytest.raises(ApiError) as caught:
        await completion(tokenizer, [5] * length, max_tokens=1)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(ApiError) as caught:
        await chat(tokenizer, "hello " * length)
    assert caught.value.code == "context_length_exceeded"


async def test_b004_more_messages_than_tokens_fit_are_refused_without_rendering_them(tokenizer: Tokenizer) -> None:
    body = ChatBody.model_validate({"model": "m", "messages": [{"role": "user", "content": ""}] * (LIMIT + 1)})
    with pytest.raises(ApiError, match=f"at least {LIMIT + 1} prompt tokens") as caught:
        await chat_prompt(body, tokenizer, LIMIT)
    assert caught.value.code == "context_length_exceeded"


async def test_b005_megabytes_are_refused_without_encoding_them(tokenizer: Tokenizer) -> None:
    started = time.monotonic()
    with pytest.raises(ApiError) as caught:
        await completion(tokenizer, "word " * 4_000_000)
    assert caught.value.code == "context_length_exceeded"
    assert "prompt tokens do not fit in" in caught.value.message
    assert time.monotonic() - started < 0.5


async def test_min_tokens_above_the_limit_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(ApiError, match="min_tokens"):
        await completion(tokenizer, "a", max_tokens=3, min_tokens=4)
    with pytest.raises(ApiError, match="min_tokens"):
        await completion(tokenizer, "a", min_tokens=17)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": [49_152]}, "prompt"),
        ({"logit_bias": {"49152": 1}}, "logit_bias"),
        ({"stop_token_ids": [49_152]}, "stop_token_ids"),
    ],
)
async def test_ids_that_the_model_has_not_are_refused(tokenizer: Tokenizer, fields: Any, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        await completion(tokenizer, **({"prompt": "a"} | fields))
    assert caught.value.param == param


async def test_b021_parts_make_the_same_prompt_as_the_string(tokenizer: Tokenizer) -> None:
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    assert await chat(tokenizer, parts) == await chat(tokenizer, "one two")


def test_b025_the_tail_is_the_unfinished_character(tokenizer: Tokenizer) -> None:
    by_byte = {tokenizer.token_bytes(token): token for token in range(tokenizer.vocab_size)}
    ids = [by_byte[bytes((byte,))] for byte in "a😀".encode()]
    tails = [prompt_tail(ids[:count], tokenizer) for count in range(len(ids) + 1)]
    assert tails == [b"", b"", b"\xf0", b"\xf0\x9f", b"\xf0\x9f\x98", b""]


def ask(**fields: Any) -> Ask:
    body = CompletionsBody.model_validate({"model": "m", "prompt": "p", **fields})
    return Ask(body, Prompt([1, 2], 7), 5)


def test_numbers_too_small_for_32_bits_are_not_taken_for_defaults() -> None:
    sampling = engine_request("r", ask(top_p=1e-50, repetition_penalty=1e-50), None).sampling_params
    assert 0 < sampling.top_p < 1e-20
    assert 0 < sampling.repetition_penalty < 1e-20


def test_defaults_of_the_engine_request() -> None:
    request = engine_request("r", ask(), None)
    sampling = request.sampling_params
    assert (sampling.temperature, sampling.top_p, sampling.repetition_penalty) == (1.0, 1.0, 1.0)
    assert (sampling.top_k, sampling.n, sampling.max_tokens, sampling.seed) == (0, 1, 7, 5)
    assert not sampling.HasField("logprobs")
    assert not request.HasField("kv_transfer_params_json")
    assert list(request.tokenized.input_ids) == [1, 2]
    assert request.stream


def test_what_is_given_reaches_the_engine() -> None:
    fields = {"temperature": 0, "top_k": -1, "logit_bias": {"3": -100}, "logprobs": 0, "n": 4, "ignore_eos": True}
    sampling = engine_request("r", ask(**fields, stop=["x"]), "{}").sampling_params
    assert (sampling.temperature, sampling.top_k, sampling.n, sampling.ignore_eos) == (0.0, 0, 4, True)
    assert dict(sampling.logit_bias) == {3: -100.0}
    assert sampling.HasField("logprobs")
    assert not sampling.stop


@pytest.mark.parametrize("seed", [0, 1, -1, 2**31 - 1, -(2**31)])
def test_small_seeds_stay_what_they_are(seed: int) -> None:
    assert fold_seed(seed) == seed


@pytest.mark.parametrize("seed", [2**31, -(2**63), 2**63 - 1, 2**40 + 5])
def test_large_seeds_are_folded_into_32_bits(seed: int) -> None:
    assert -(2**31) <= fold_seed(seed) < 2**31
    assert fold_seed(seed) == fold_seed(seed)
