"""A Hugging Face folder of one's own through the whole stack, in float32: token for token what transformers says.

The model is small and random, so that its every bit matters and nobody waits; its tokenizer is the default model's.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from services.tokenization.source import DEFAULT_MODEL, resolve_model
from services.tokenization.tokenizer import Tokenizer
from tests.e2e.api import Api, Json, Mode
from tests.e2e.conftest import client_of
from tests.runner_driver import teacher_forced
from tests.stack import RunningStack, running_stack

pytestmark = [pytest.mark.model, pytest.mark.timeout(240)]

NAME = "own-llama"
TOKENS = 48
COMPLETIONS = Mode("completions", False)
WAYS = [{"x-tokenpath-mode": "disaggregated"}, {"x-tokenpath-mode": "aggregated"}]
TEXTS = [
    "a",
    "The sea",
    "한국어로 말해 주세요.",
    "def add(a, b):",
    "1 2 3 4 5 6 7 8 9 10 11 12",
    "🎉",
    "x " * 40,
    "y " * 90,
]


@dataclass
class OwnModel:
    stack: RunningStack
    reference: PreTrainedModel
    tokenizer: Tokenizer


@pytest.fixture(scope="module")
def own_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnModel]:
    folder = tmp_path_factory.mktemp("models") / NAME
    folder.mkdir()
    tokenizer = Tokenizer.load(DEFAULT_MODEL)
    reference = _random_model(tokenizer.vocab_size)
    reference.save_pretrained(folder)
    for file in resolve_model(DEFAULT_MODEL).folder.glob("tokenizer*.json"):
        shutil.copy(file, folder)
    env = {"TOKENPATH_LOCAL_MODEL": str(folder), "TOKENPATH_LOCAL_DTYPE": "float32"}
    with running_stack(tmp_path_factory.mktemp("own"), engine="torch", env=env) as stack:
        yield OwnModel(stack, reference, tokenizer)


@pytest.fixture
async def own(own_model: OwnModel) -> AsyncIterator[Api]:
    async with client_of(own_model.stack) as client:
        yield Api(own_model.stack, client, NAME)


def _random_model(vocab_size: int) -> PreTrainedModel:
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=vocab_size, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, eos_token_id=2, bos_token_id=1, tie_word_embeddings=False,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    for key, parameter in model.named_parameters():
        parameter.data.normal_(1.0 if "norm" in key else 0.0, 0.2)
    return model


def expected(own_model: OwnModel, prompt: list[int]) -> str:
    """The text of transformers' greedy answer."""
    tokens = own_model.reference.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        do_sample=False,
        max_new_tokens=TOKENS,
        eos_token_id=None,
        pad_token_id=0,
    )[0, len(prompt) :].tolist()
    assert teacher_forced(own_model.reference, prompt, tokens) == tokens
    return own_model.tokenizer.decode(tokens)


@pytest.mark.parametrize("way", WAYS, ids=["apart", "together"])
async def test_greedy_answers_equal_transformers_alone_and_in_a_batch(
    own: Api, own_model: OwnModel, way: dict[str, str]
) -> None:
    prompts = [own_model.tokenizer.encode(text, add_special_tokens=False) for text in TEXTS]
    texts = [expected(own_model, prompt) for prompt in prompts]
    fields: Json = {"temperature": 0, "max_tokens": TOKENS, "ignore_eos": True}
    alone = [await own.ask(COMPLETIONS, prompt, way, **fields) for prompt in prompts[:3]]
    assert [answer.text for answer in alone] == texts[:3]
    batch = await asyncio.gather(*(own.ask(COMPLETIONS, prompt, way, **fields) for prompt in prompts))
    assert [answer.text for answer in batch] == texts
    together = await own.ask(COMPLETIONS, prompts, way, **fields)
    assert together.texts == texts


async def test_seeded_answers_are_the_same_in_every_way(own: Api) -> None:
    """Prefill samples the first token and decode the others, from one and the same stream of chance."""
    fields: Json = {"temperature": 0.9, "top_p": 0.9, "seed": 7, "max_tokens": 24, "n": 3}
    apart, together = [await own.ask(COMPLETIONS, "The sea", way, **fields) for way in WAYS]
    streamed = await own.ask(Mode("completions", True), "The sea", **fields)
    assert apart.texts == together.texts == streamed.texts
    assert len(set(apart.texts)) == 3
    assert (await own.ask(COMPLETIONS, "The sea", **{**fields, "seed": 8})).texts != apart.texts


async def test_it_goes_by_the_name_of_its_folder(own: Api) -> None:
    models = (await own.http.get("/v1/models")).json()["data"]
    assert [(model["id"], model["max_model_len"]) for model in models] == [(NAME, 512)]
