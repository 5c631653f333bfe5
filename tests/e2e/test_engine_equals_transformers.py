"""The default model's greedy answers equal those of transformers, which reads the same GGUF file by itself."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from services.engine.torch_runner import TorchRunner
from services.tokenization.cache import CACHE_DIR_VARIABLE
from services.tokenization.gguf_tokenizer import ensure_tokenizer_files
from services.tokenization.source import DEFAULT_MODEL, resolve_model
from tests.runner_driver import generate, teacher_forced

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]

TOKENS = 64
QUESTIONS = [
    "What is the capital of France?",
    "Name the three primary colors.",
    "Write a short poem about the sea.",
    "Explain what a KV cache is.",
    "How many days are in a week?",
    "Who wrote Romeo and Juliet?",
    "대한민국의 수도는 어디인가요?",
    "Write a Python function that adds two numbers.",
    "Translate 'good morning' into Spanish.",
    "🎉",
    "List five fruits.",
    "What is 17 + 25?",
    "Why is the sky blue? " * 12,
    "Tell me a joke.",
    "a",
    "Describe the life cycle of a butterfly in one paragraph.",
]


@dataclass(frozen=True)
class Subject:
    runner: TorchRunner
    reference: PreTrainedModel
    prompts: list[list[int]]


@pytest.fixture(scope="module")
def subject() -> Iterator[Subject]:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE_DIR_VARIABLE, folder)  # the exact float32 weights are half a gigabyte: not to be left behind
        files = resolve_model(DEFAULT_MODEL)
        assert files.gguf_path is not None
        ensure_tokenizer_files(files.gguf_path, files.folder)
        tokenizer = Tokenizer.from_file(str(files.folder / "tokenizer.json"))
        runner = TorchRunner.load(files, num_blocks=256, dtype="float32", threads=1)
        reference = _read_by_transformers(files.gguf_path)
        prompts = [tokenizer.encode(_chat(question)).ids for question in QUESTIONS]
        yield Subject(runner, reference, prompts)
        runner.close()


def _read_by_transformers(path: Path) -> PreTrainedModel:
    """What `from_pretrained(gguf_file=...)` does, which asks for another package before it starts."""
    with torch.device("meta"):
        names_only = LlamaForCausalLM(LlamaConfig(num_hidden_layers=30, tie_word_embeddings=True))
    checkpoint = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=names_only)
    model = LlamaForCausalLM(LlamaConfig(**checkpoint["config"]))
    missing, unexpected = model.load_state_dict(checkpoint["tensors"], strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])
    model.tie_weights()
    return model.eval()


def _chat(question: str) -> str:
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


def test_16_prompts_of_64_tokens_equal_transformers_in_a_batch_of_8(subject: Subject) -> None:
    outputs = generate(subject.runner, subject.prompts, TOKENS, batch=8)
    expected = [
        teacher_forced(subject.reference, prompt, output)
        for prompt, output in zip(subject.prompts, outputs, strict=True)
    ]
    assert outputs == expected


def test_alone_and_in_chunks_equal_transformers(subject: Subject) -> None:
    prompts = [subject.prompts[0], subject.prompts[12]]
    alone = generate(subject.runner, prompts, TOKENS)
    assert [teacher_forced(subject.reference, *pair) for pair in zip(prompts, alone, strict=True)] == alone
    assert generate(subject.runner, prompts, TOKENS, chunk=37, batch=2, join_every=5) == alone


def test_transformers_own_generation_gives_the_same_tokens(subject: Subject) -> None:
    """Checks the way the other tests compare: with steps and a cache of transformers' own."""
    prompt = subject.prompts[0]
    result = subject.reference.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        do_sample=False,
        max_new_tokens=16,
        eos_token_id=None,
        pad_token_id=0,
    )
    assert generate(subject.runner, [prompt], 16) == [result[0, len(prompt) :].tolist()]
