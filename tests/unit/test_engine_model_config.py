"""What is read from config.json, and that nothing is run that would be computed wrongly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from services.engine.model.config import read_config
from services.engine.model.errors import UnsupportedModelError, WeightsError
from services.engine.model.rope_config import Llama3Scaling, RopeConfig
from services.engine.model.weight_files import Weights, find_weight_files, weights_digest
from tests.runner_driver import generate, random_prompts, teacher_forced, tiny_model, tiny_runner

BASE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 512,
}
LLAMA3 = {
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def write(folder: Path, name: str = "config.json", /, **changes: Any) -> Path:
    content = {**(BASE if name == "config.json" else {}), **changes}
    (folder / name).write_text(json.dumps(content))
    return folder


def test_defaults_are_hugging_faces(tmp_path: Path) -> None:
    config = read_config(write(tmp_path))
    assert (config.kv_heads, config.head_dim) == (4, 16)
    assert config.rope == RopeConfig(10_000.0)
    assert not any((config.tied_head, config.qkv_bias, config.output_bias, config.mlp_bias, config.qk_norm))


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
        {"rope_theta": 5e5, "rope_scaling": {"type": "llama3", **LLAMA3}},
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3}},
    ],
)
def test_rope_is_read_from_every_generation_of_configuration(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert read_config(write(tmp_path, **changes)).rope == RopeConfig(5e5, Llama3Scaling(32.0, 1.0, 4.0, 8192))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope scaling 'yarn'"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "factor"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"architectures": ["GPT2LMHeadModel"]}, "'GPT2LMHeadModel' is not supported"),
        ({"architectures": None}, "not supported"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"use_sliding_window": True}, "sliding"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
    ],
)
def test_an_unknown_feature_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message) as caught:
        read_config(write(tmp_path, **changes))
    assert "config.json" in str(caught.value)


def test_end_tokens_come_from_both_files(tmp_path: Path) -> None:
    write(tmp_path, eos_token_id=7)
    write(tmp_path, "generation_config.json", eos_token_id=[9, 7])
    assert read_config(tmp_path).eos_token_ids == (7, 9)


@pytest.mark.parametrize("content", [None, "{", "[]"])
def test_a_missing_or_damaged_configuration_is_named(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(UnsupportedModelError, match=r"config\.json"):
        read_config(tmp_path)


def test_sharded_weights_answer_as_one_file(tmp_path: Path) -> None:
    model = tiny_model("qwen2", tmp_path, max_shard_size="60KB")
    assert len(find_weight_files(tmp_path).paths) > 2
    runner = tiny_runner(tmp_path)
    [prompt] = random_prompts(1, shortest=20, longest=40)
    [output] = generate(runner, [prompt], 10)
    runner.close()
    assert output == teacher_forced(model, prompt, output)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    tiny_model("qwen2", tmp_path, max_shard_size="60KB")
    lost = find_weight_files(tmp_path).paths[1]
    lost.unlink()
    with pytest.raises(WeightsError, match=lost.name):
        tiny_runner(tmp_path)


def test_weights_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="download the weights"):
        find_weight_files(tmp_path)
    tiny_model("llama-tied-with-biases", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for changes, message in [
        ({"vocab_size": 99}, r"embed_tokens.weight .* shape \[131, 48\], config.json says \[99, 48\]"),
        ({"num_hidden_layers": 4}, r"lack model\.layers\.3\."),
        ({"num_hidden_layers": 2}, "unknown use"),
        ({"mlp_bias": False}, "unknown use"),
    ]:
        (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))
        with pytest.raises(WeightsError, match=message):
            tiny_runner(tmp_path)


def test_a_cut_weight_file_is_refused(tmp_path: Path) -> None:
    tiny_model("llama3-rope", tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(WeightsError, match=r"model\.safetensors .* fetch the file again"):
        Weights([path])


def test_the_digest_tells_weights_and_configurations_apart(tmp_path: Path) -> None:
    tiny_model("llama3-rope", tmp_path)
    files, config = find_weight_files(tmp_path), read_config(tmp_path)
    digest = weights_digest(files, config)
    assert weights_digest(files, config) == digest
    content = json.loads((tmp_path / "config.json").read_text())
    content["rope_parameters"]["factor"] = 4.0
    (tmp_path / "config.json").write_text(json.dumps(content))
    assert weights_digest(files, read_config(tmp_path)) != digest
    path = files.paths[0]
    path.write_bytes(path.read_bytes()[:-4] + b"\0\0\0\1")
    assert weights_digest(files, config) != digest
