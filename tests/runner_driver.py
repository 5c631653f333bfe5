"""Drives a Runner as the engine's core does, in the simplest way, and makes small random models for it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from services.engine.runner import Runner, Sampled, SampleRequest, SequenceSlice
from services.engine.sampling_params import SamplingParams
from services.engine.torch_runner import TorchRunner
from services.tokenization.source import ModelFiles

GREEDY = SamplingParams(temperature=0.0)
VOCABULARY = 131
_SHAPE = {
    "vocab_size": VOCABULARY,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "max_position_embeddings": 512,
    "eos_token_id": 2,
}
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
TINY_MODELS: dict[str, PreTrainedConfig] = {
    "llama-grouped-query": LlamaConfig(**_SHAPE, hidden_size=64, num_attention_heads=4, num_key_value_heads=2),
    "llama-tied-with-biases": LlamaConfig(
        **_SHAPE,
        hidden_size=48,
        num_attention_heads=6,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        attention_bias=True,
        mlp_bias=True,
    ),
    "llama3-rope": LlamaConfig(
        **_SHAPE, hidden_size=64, num_attention_heads=4, num_key_value_heads=4, rope_parameters=_LLAMA3_ROPE
    ),
    "qwen2": Qwen2Config(**_SHAPE, hidden_size=64, num_attention_heads=4, num_key_value_heads=1),
    "qwen3": Qwen3Config(
        **_SHAPE, hidden_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=32, tie_word_embeddings=True
    ),
}


def tiny_model(name: str, folder: Path, *, max_shard_size: str = "1GB") -> PreTrainedModel:
    """A random model of one of TINY_MODELS, saved into `folder`; every parameter matters to what it answers."""
    torch.manual_seed(len(name))
    model = AutoModelForCausalLM.from_config(TINY_MODELS[name], dtype=torch.float32).eval()
    for key, parameter in model.named_parameters():
        parameter.data.normal_(1.0 if "norm" in key else 0.0, 0.2)
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    return model


def tiny_runner(folder: Path, *, num_blocks: int = 64, block_size: int = 16, device: str = "cpu") -> TorchRunner:
    files = ModelFiles(folder.name, folder, "huggingface")
    return TorchRunner.load(
        files, num_blocks=num_blocks, block_size=block_size, dtype="float32", device=device, threads=1
    )


def random_prompts(count: int, *, shortest: int, longest: int, seed: int = 0) -> list[list[int]]:
    source = random.Random(seed)
    return [[source.randrange(VOCABULARY) for _ in range(source.randint(shortest, longest))] for _ in range(count)]


@dataclass
class Conversation:
    """One sequence on its way: what was asked, what has come, which blocks it holds."""

    name: str
    prompt: list[int]
    params: SamplingParams
    blocks: list[int]
    seed: tuple[int, int] = (0, 0)
    output: list[int] = field(default_factory=list)
    computed: int = 0

    def next_slice(self, chunk: int) -> SequenceSlice:
        tokens = [*self.prompt, *self.output]
        end = min(len(tokens), self.computed + chunk)
        request = SampleRequest(self.params, self.seed, len(self.output), self.prompt, tuple(self.output))
        return SequenceSlice(
            self.name, tokens[self.computed : end], self.computed, self.blocks, request if end == len(tokens) else None
        )

    def take(self, item: SequenceSlice, result: Sampled | Exception | None) -> None:
        self.computed += len(item.token_ids)
        if isinstance(result, Exception):
            raise result
        assert (result is None) == (item.sample is None)
        if result is not None:
            self.output.append(result.token_id)


class Blocks:
    """Hands out a runner's blocks in a mixed order, so that no test passes by the blocks' being neighbours."""

    def __init__(self, runner: Runner, seed: int = 1) -> None:
        self._block_size = runner.layout.block_size
        self._free = list(range(runner.num_blocks))
        random.Random(seed).shuffle(self._free)

    def take(self, tokens: int) -> list[int]:
        count = -(-tokens // self._block_size)
        taken, self._free = self._free[:count], self._free[count:]
        assert len(taken) == count, "give the runner more blocks"
        return taken


def generate(
    runner: Runner,
    prompts: Sequence[list[int]],
    tokens: int,
    *,
    params: SamplingParams = GREEDY,
    seeds: Sequence[tuple[int, int]] | None = None,
    chunk: int = 1 << 20,
    batch: int = 1,
    join_every: int = 0,
) -> list[list[int]]:
    """`tokens` output tokens for each prompt, up to `batch` sequences a step and prompts in chunks of `chunk`.

    With `join_every`, sequence i joins at step i * join_every: prompts and decodes meet in one step.
    """
    outputs: list[list[int]] = []
    for first in range(0, len(prompts), batch):
        blocks = Blocks(runner)
        sequences = [
            Conversation(
                str(index), prompt, params, blocks.take(len(prompt) + tokens), seeds[index] if seeds else (0, 0)
            )
            for index, prompt in enumerate(prompts[first : first + batch], start=first)
        ]
        step = 0
        while any(len(item.output) < tokens for item in sequences):
            ready = [s for i, s in enumerate(sequences) if len(s.output) < tokens and step >= i * join_every]
            step += 1
            slices = [item.next_slice(chunk) for item in ready]
            for sequence, item, result in zip(ready, slices, runner.execute(slices), strict=True):
                sequence.take(item, result)
        outputs.extend(item.output for item in sequences)
    return outputs


@torch.inference_mode()
def teacher_forced(model: PreTrainedModel, prompt: list[int], output: list[int]) -> list[int]:
    """The tokens that transformers finds most likely after the prompt and after each token of `output` but the last.

    Equal to `output` exactly when transformers' greedy generation gives `output`, in one pass instead of one a token.
    """
    logits = model(torch.tensor([[*prompt, *output[:-1]]])).logits[0, len(prompt) - 1 :]
    return logits.argmax(-1).tolist()  # type: ignore[no-any-return]
