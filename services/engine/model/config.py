"""What a model looks like, read from the `config.json` of a Hugging Face folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.engine.model.errors import UnsupportedModelError
from services.engine.model.rope_config import RopeConfig, read_rope

SUPPORTED = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder of Llama's shape: RMS norm, rotary positions, grouped-query attention, SwiGLU."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: RopeConfig
    max_model_len: int
    tied_head: bool
    """The output projection is the embedding."""
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    """Each head's query and key are normalised before the rotation, as in Qwen3."""
    eos_token_ids: tuple[int, ...]


def read_config(folder: Path) -> ModelConfig:
    """Read `config.json` (and `generation_config.json` for its end tokens).

    Raises UnsupportedModelError naming the key for whatever would be computed wrongly.
    """
    raw = _json(folder / "config.json")
    try:
        return _parse(raw, _json(folder / "generation_config.json", required=False))
    except KeyError as error:
        raise UnsupportedModelError(f"{folder / 'config.json'} lacks {error}; is it a Llama or Qwen model?") from error
    except UnsupportedModelError as error:
        raise UnsupportedModelError(f"{folder / 'config.json'}: {error}") from error


def _parse(raw: Mapping[str, Any], generation: Mapping[str, Any]) -> ModelConfig:
    architecture = (raw.get("architectures") or [""])[0]
    if architecture not in SUPPORTED:
        raise UnsupportedModelError(
            f"architecture {architecture!r} is not supported; supported are {', '.join(SUPPORTED)}"
        )
    _refuse_unknown_features(raw)
    heads = int(raw["num_attention_heads"])
    head_dim = int(raw.get("head_dim") or raw["hidden_size"] // heads)
    attention_bias = bool(raw.get("attention_bias", False))
    max_model_len = int(raw["max_position_embeddings"])
    return ModelConfig(
        architecture=architecture,
        vocab_size=int(raw["vocab_size"]),
        hidden_size=int(raw["hidden_size"]),
        intermediate_size=int(raw["intermediate_size"]),
        layers=int(raw["num_hidden_layers"]),
        heads=heads,
        kv_heads=int(raw.get("num_key_value_heads") or heads),
        head_dim=head_dim,
        rms_norm_eps=float(raw["rms_norm_eps"]),
        rope=read_rope(raw),
        max_model_len=max_model_len,
        tied_head=bool(raw.get("tie_word_embeddings", False)),
        qkv_bias=architecture == "Qwen2ForCausalLM" or attention_bias,
        output_bias=architecture != "Qwen2ForCausalLM" and attention_bias,
        mlp_bias=bool(raw.get("mlp_bias", False)),
        qk_norm=architecture == "Qwen3ForCausalLM",
        eos_token_ids=_eos(raw, generation),
    )


def _refuse_unknown_features(raw: Mapping[str, Any]) -> None:
    if raw.get("hidden_act", "silu") != "silu":
        raise UnsupportedModelError(f"hidden_act {raw['hidden_act']!r} is not supported, only 'silu'")
    if raw.get("quantization_config"):
        raise UnsupportedModelError(
            "quantization_config: quantised safetensors are not supported; use the original model"
        )
    if raw.get("use_sliding_window") or "sliding_attention" in (raw.get("layer_types") or ()):
        raise UnsupportedModelError("use_sliding_window: sliding window attention is not supported")


def _eos(*configs: Mapping[str, Any]) -> tuple[int, ...]:
    ids: set[int] = set()
    for config in configs:
        value = config.get("eos_token_id")
        ids.update(value if isinstance(value, list) else () if value is None else (value,))
    return tuple(sorted(ids))


def _json(path: Path, *, required: bool = True) -> Mapping[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        if not required:
            return {}
        raise UnsupportedModelError(f"{path} is missing; give a folder laid out as Hugging Face does it") from error
    except ValueError as error:
        raise UnsupportedModelError(f"{path} is not valid JSON ({error}); fetch it again") from error
    if not isinstance(content, dict):
        raise UnsupportedModelError(f"{path} holds no JSON object; fetch it again")
    return content
