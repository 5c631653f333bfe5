"""What the torch runner refuses, and that one sequence's trouble stays its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from services.engine.runner import Sampled, SampleRequest, SequenceSlice
from services.engine.sampling_params import SamplingParams
from services.engine.torch_runner import TorchRunner
from tests.runner_driver import GREEDY, VOCABULARY, generate, random_prompts, tiny_model, tiny_runner

PROMPTS = random_prompts(4, shortest=20, longest=60)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    tiny_model("llama-grouped-query", folder)
    return folder


@pytest.fixture
def runner(folder: Path) -> Iterator[TorchRunner]:
    runner = tiny_runner(folder)
    yield runner
    runner.close()


def asked(name: str, tokens: list[int], blocks: list[int], *, start: int = 0) -> SequenceSlice:
    return SequenceSlice(name, tokens, start, blocks, SampleRequest(GREEDY, (0, 0), 0, tokens, ()))


def test_the_description_is_the_models(runner: TorchRunner) -> None:
    model = runner.model
    assert (model.architecture, model.vocab_size, model.max_model_len) == ("LlamaForCausalLM", VOCABULARY, 512)
    assert model.eos_token_ids == (2,)
    assert runner.num_blocks == 64
    assert runner.layout.bytes_per_block == 3 * 2 * 2 * 16 * 16 * 4  # layers, key and value, heads, tokens, dim, bytes


def test_a_block_is_contiguous_by_layer_kind_head_token(runner: TorchRunner) -> None:
    """The first tokens of a block, read alone, are those of the whole block at their places."""
    runner.execute([SequenceSlice("a", PROMPTS[0][:16], 0, [3])])
    whole = np.frombuffer(runner.read_block(3, 16), np.float32).reshape(3, 2, 2, 16, 16)
    part = np.frombuffer(runner.read_block(3, 5), np.float32).reshape(3, 2, 2, 5, 16)
    assert np.array_equal(whole[:, :, :, :5], part)
    assert np.abs(whole).min() > 0


def test_writing_a_part_of_a_block_clears_the_rest(runner: TorchRunner) -> None:
    runner.execute([SequenceSlice("a", PROMPTS[0][:16], 0, [3])])
    part = runner.read_block(3, 5)
    runner.write_block(3, 5, memoryview(part))
    whole = np.frombuffer(runner.read_block(3, 16), np.float32).reshape(3, 2, 2, 16, 16)
    assert whole[:, :, :, :5].tobytes() == part
    assert not whole[:, :, :, 5:].any()


def test_a_payload_of_another_length_is_refused(runner: TorchRunner) -> None:
    with pytest.raises(ValueError, match="bytes for 16 tokens"):
        runner.write_block(0, 16, memoryview(bytes(runner.layout.payload_bytes(15))))


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (asked("bad", [VOCABULARY], [9]), "outside the vocabulary"),
        (asked("bad", [-1], [9]), "outside the vocabulary"),
        (asked("bad", [], [9]), "no token"),
        (asked("bad", [1] * 17, [9]), "don't reach position 17"),
        (asked("bad", [1], []), "don't reach position 1"),
        (asked("bad", [1], [64]), "outside the pool"),
        (asked("bad", [1], [9], start=512), "model's length"),
        (asked("bad", [1], [9], start=-1), "model's length"),
    ],
)
def test_b011_a_slice_that_cannot_run_fails_alone(runner: TorchRunner, bad: SequenceSlice, message: str) -> None:
    [[expected]] = generate(runner, PROMPTS[:1], 1)
    blocks = [5, 4, 3, 2]
    result = runner.execute([bad, asked("good", PROMPTS[0], blocks)])
    assert isinstance(result[0], ValueError)
    assert message in str(result[0])
    assert result[1] == Sampled(expected)
    assert isinstance(runner.execute([bad])[0], ValueError)


def test_b011_damaged_kv_fails_its_sequence_alone_and_leaves_nothing_behind(runner: TorchRunner) -> None:
    expected = generate(runner, PROMPTS, 3)
    damage = np.full(runner.layout.bytes_per_block // 4, np.nan, np.float32).tobytes()
    healthy, damaged = [10, 11, 12, 13], [20, 21, 22, 23]
    for block in damaged:
        runner.write_block(block, 16, memoryview(damage))
    good = asked("good", PROMPTS[0], healthy)
    for tokens in ([7], [7, 8]):  # decoded in one product with its neighbour, and as a chunk
        bad = asked("bad", tokens, damaged, start=20)
        result = runner.execute([bad, good, asked("single", PROMPTS[0][-1:], healthy, start=len(PROMPTS[0]) - 1)])
        assert isinstance(result[0], ValueError)
        assert "not finite" in str(result[0])
        assert result[1] == result[2] == Sampled(expected[0][0])
    # The pool's blocks pass to other sequences, one of them not filling its last block.
    for block in range(runner.num_blocks):
        runner.write_block(block, 16, memoryview(damage))
    assert generate(runner, PROMPTS, 3, batch=4) == expected
    assert generate(runner, PROMPTS, 3, batch=4, chunk=5) == expected


def test_a_seeded_answer_is_the_same_alone_in_a_batch_and_in_chunks(runner: TorchRunner) -> None:
    params = SamplingParams(temperature=1.0, top_p=0.9, frequency_penalty=0.2)
    seeds = [(7, 0), (7, 1), (8, 0), (9, 0)]
    prompts = [PROMPTS[0], PROMPTS[0], PROMPTS[0], PROMPTS[1]]
    alone = generate(runner, prompts, 12, params=params, seeds=seeds)
    assert len({tuple(tokens) for tokens in alone}) == 4, "another seed or another choice gives another answer"
    assert generate(runner, prompts, 12, params=params, seeds=seeds, batch=4) == alone
    assert generate(runner, prompts, 12, params=params, seeds=seeds, batch=4, chunk=9, join_every=2) == alone


def test_logprobs_come_with_the_token(runner: TorchRunner) -> None:
    item = asked("a", PROMPTS[0], [5, 4, 3, 2])
    assert item.sample is not None
    params = dataclasses.replace(GREEDY, logprobs=3)
    item = dataclasses.replace(item, sample=dataclasses.replace(item.sample, params=params))
    [result] = runner.execute([item])
    assert isinstance(result, Sampled)
    assert len(result.top) == 3
    assert result.top[0] == (result.token_id, result.logprob)
    assert result.logprob is not None
    assert result.logprob < 0
