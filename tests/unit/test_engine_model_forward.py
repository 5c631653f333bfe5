"""The torch runner answers as transformers does, however its work is cut into steps and moved between runners."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from services.engine.runner import SampleRequest, SequenceSlice
from services.engine.torch_runner import TorchRunner
from tests.runner_driver import GREEDY, TINY_MODELS, Blocks, generate, random_prompts, tiny_model, tiny_runner

TOKENS = 24


@dataclass(frozen=True)
class Case:
    runner: TorchRunner
    folder: Path
    prompts: list[list[int]]
    expected: list[list[int]]


@pytest.fixture(scope="module", params=list(TINY_MODELS))
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    folder = tmp_path_factory.mktemp(request.param)
    model = tiny_model(request.param, folder)
    prompts = [*random_prompts(7, shortest=1, longest=90), [5] * 300]
    runner = tiny_runner(folder)
    yield Case(runner, folder, prompts, [transformers_greedy(model, prompt) for prompt in prompts])
    runner.close()


def transformers_greedy(model: PreTrainedModel, prompt: list[int]) -> list[int]:
    result = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        do_sample=False,
        max_new_tokens=TOKENS,
        eos_token_id=None,
        pad_token_id=0,
    )
    return result[0, len(prompt) :].tolist()  # type: ignore[no-any-return]


def test_the_random_models_answer_differently_to_different_prompts(case: Case) -> None:
    """Otherwise the comparisons below would prove nothing."""
    assert len({tuple(tokens) for tokens in case.expected}) == len(case.prompts)
    assert all(len(set(tokens)) > 3 for tokens in case.expected[:-1])


def test_a_sequence_alone_equals_transformers(case: Case) -> None:
    assert generate(case.runner, case.prompts, TOKENS) == case.expected


def test_a_batch_of_8_equals_transformers(case: Case) -> None:
    assert generate(case.runner, case.prompts, TOKENS, batch=8) == case.expected


@pytest.mark.parametrize("chunk", [1, 7, 16, 50])
def test_a_prompt_in_chunks_equals_transformers(case: Case, chunk: int) -> None:
    assert generate(case.runner, case.prompts, TOKENS, chunk=chunk, batch=8) == case.expected


def test_prompt_chunks_and_decodes_in_one_step_equal_transformers(case: Case) -> None:
    assert generate(case.runner, case.prompts, TOKENS, chunk=20, batch=8, join_every=3) == case.expected


def test_another_runner_goes_on_from_blocks_it_was_given(case: Case) -> None:
    """The hand-off from prefill to decode: whole blocks and a part of one, into other places of another pool."""
    prompt, expected = case.prompts[1], case.expected[1]
    size = case.runner.layout.block_size
    blocks = Blocks(case.runner).take(len(prompt))
    case.runner.execute([SequenceSlice("prefill", prompt, 0, blocks)])
    filled = [min(size, len(prompt) - index * size) for index in range(len(blocks))]
    payloads = [case.runner.read_block(block, tokens) for block, tokens in zip(blocks, filled, strict=True)]
    assert [len(payload) for payload in payloads] == [case.runner.layout.payload_bytes(tokens) for tokens in filled]

    other = tiny_runner(case.folder)
    assert other.layout == case.runner.layout
    assert other.model == case.runner.model
    places = Blocks(other, seed=2).take(len(prompt) + TOKENS)
    for place, tokens, payload in zip(places, filled, payloads, strict=False):
        other.write_block(place, tokens, memoryview(payload))
    output = expected[:1]
    while len(output) < TOKENS:
        position = len(prompt) + len(output) - 1
        request = SampleRequest(GREEDY, (0, 0), len(output), prompt, tuple(output))
        [result] = other.execute([SequenceSlice("decode", output[-1:], position, places, request)])
        assert result is not None
        assert not isinstance(result, Exception)
        output.append(result.token_id)
    other.close()
    assert output == expected


def test_a_copied_block_goes_on_apart_from_its_source(case: Case) -> None:
    """Two choices of one request share the prompt's last block until one copies it and both write on."""
    prompt = case.prompts[0][:5]
    source, target = Blocks(case.runner).take(32)
    case.runner.execute([SequenceSlice("shared", prompt, 0, [source])])
    case.runner.copy_block(source, target)
    before = case.runner.read_block(source, 5)
    case.runner.execute([SequenceSlice("apart", [9, 8], 5, [target])])
    assert case.runner.read_block(source, 5) == case.runner.read_block(target, 5) == before
    assert case.runner.read_block(source, 7)[:] != case.runner.read_block(target, 7)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_equals_transformers(case: Case) -> None:
    runner = tiny_runner(case.folder, device="cuda")
    assert generate(runner, case.prompts, TOKENS, chunk=20, batch=8, join_every=3) == case.expected
    runner.close()
