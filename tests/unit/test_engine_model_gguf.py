"""GGUF files become weights as Hugging Face lays them out: order of rows, exact values, one writer at a time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
import pytest
import torch
from gguf.quants import dequantize, quantize
from safetensors.torch import load_file

from services.engine.model.convert import ensure_converted
from services.engine.model.errors import UnsupportedModelError
from services.engine.model.gguf_weights import GgufModel
from services.engine.torch_runner import TorchRunner
from services.tokenization.source import ModelFiles
from tests.runner_driver import generate, random_prompts, teacher_forced, tiny_model

Q8_0 = gguf.GGMLQuantizationType.Q8_0
HEADS, KV_HEADS = 4, 2
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    for theirs, ours in NAMES.items():
        name = name.replace(theirs, ours)
    return name.replace("model.layers.", "blk.")


def permuted(weight: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """As llama.cpp's convert_hf_to_gguf.py reorders the rows of queries and keys."""
    return weight.reshape(heads, 2, len(weight) // heads // 2, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def tiny_gguf(path: Path, tensors: dict[str, torch.Tensor], architecture: str = "llama") -> None:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(512)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(96)
    writer.add_block_count(3)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_eos_token_id(2)
    for name, tensor in tensors.items():
        values = tensor.numpy()
        if values.ndim == 1:
            writer.add_tensor(gguf_name(name), values)
            continue
        if "q_proj" in name or "k_proj" in name:
            values = permuted(values, HEADS if "q_proj" in name else KV_HEADS)
        writer.add_tensor(gguf_name(name), quantize(values, Q8_0), raw_dtype=Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def model_file(tmp_path: Path) -> tuple[Path, dict[str, torch.Tensor]]:
    """A GGUF file and the values that its quantised tensors stand for, under Hugging Face's names."""
    tensors = {
        name: parameter.detach()
        for name, parameter in tiny_model("llama-grouped-query", tmp_path / "original").named_parameters()
    }
    path = tmp_path / "tiny.gguf"
    tiny_gguf(path, tensors)
    exact = {
        name: tensor if tensor.dim() == 1 else torch.from_numpy(dequantize(quantize(tensor.numpy(), Q8_0), Q8_0))
        for name, tensor in tensors.items()
    }
    return path, exact


def test_float32_is_exact_and_bfloat16_rounds_as_torch_does(
    model_file: tuple[Path, dict[str, torch.Tensor]], tmp_path: Path
) -> None:
    path, exact = model_file
    full = load_file(ensure_converted(path, tmp_path, "float32"))
    half = load_file(ensure_converted(path, tmp_path, "bfloat16"))
    assert full.keys() == half.keys() == exact.keys()
    for name, values in exact.items():
        assert torch.equal(full[name], values), name
        assert torch.equal(half[name], values.to(torch.bfloat16)), name


def test_a_gguf_model_answers_as_the_original_with_its_values(
    model_file: tuple[Path, dict[str, torch.Tensor]], tmp_path: Path
) -> None:
    path, exact = model_file
    original = tiny_model("llama-grouped-query", tmp_path / "again")
    original.load_state_dict(exact)
    runner = TorchRunner.load(ModelFiles("tiny", tmp_path, "gguf", path), num_blocks=16, dtype="float32", threads=1)
    assert runner.model.eos_token_ids == (2,)
    [prompt] = random_prompts(1, shortest=30, longest=50)
    [output] = generate(runner, [prompt], 10)
    runner.close()
    assert output == teacher_forced(original, prompt, output)


def test_processes_that_start_at_once_make_the_file_once(
    model_file: tuple[Path, dict[str, torch.Tensor]], tmp_path: Path
) -> None:
    path, exact = model_file
    folder = tmp_path / "cache"
    folder.mkdir()
    code = (
        "import sys, logging, pathlib; logging.basicConfig(level=logging.INFO)\n"
        "from services.engine.model.convert import ensure_converted\n"
        "ensure_converted(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), 'bfloat16')"
    )
    command = [sys.executable, "-c", code, str(path), str(folder)]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    errors = [process.communicate(timeout=60)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], errors
    assert sum("wrote model.safetensors" in error for error in errors) == 1
    assert load_file(folder / "model.safetensors").keys() == exact.keys()
    assert {file.name for file in folder.iterdir()} == {".weights.lock", "config.json", "model.safetensors"}


def test_a_cut_or_older_file_is_made_again(
    model_file: tuple[Path, dict[str, torch.Tensor]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, exact = model_file
    made = ensure_converted(path, tmp_path, "bfloat16")
    whole = made.read_bytes()
    made.write_bytes(whole[: len(whole) // 2])
    assert ensure_converted(path, tmp_path, "bfloat16").read_bytes() == whole
    monkeypatch.setattr("services.engine.model.convert._METADATA", {"format": "pt", "tokenpath_conversion": "0"})
    assert ensure_converted(path, tmp_path, "bfloat16").read_bytes() != whole
    assert load_file(made).keys() == exact.keys()


def test_a_failed_conversion_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "odd.gguf"
    tiny_gguf(path, {"model.embed_tokens.weight": torch.ones(8, 64), "blk.0.mystery.weight": torch.ones(8, 64)})
    folder = tmp_path / "cache"
    folder.mkdir()
    with pytest.raises(UnsupportedModelError, match=r"blk\.0\.mystery\.weight has no place"):
        ensure_converted(path, folder, "bfloat16")
    assert not list(folder.glob("*.safetensors*"))
    assert not list(folder.glob(".model*"))


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.gguf"
    tiny_gguf(path, {"model.embed_tokens.weight": torch.ones(8, 64)}, architecture="mamba")
    with pytest.raises(UnsupportedModelError, match="'mamba' is none of llama, qwen2, qwen3"):
        GgufModel(path)
