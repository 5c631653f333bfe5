"""From weight files to a Transformer."""

from __future__ import annotations

from typing import Literal

import torch

from services.engine.model.config import ModelConfig
from services.engine.model.head import Head
from services.engine.model.linear import Linear, make_linear
from services.engine.model.transformer import Layer, Transformer
from services.engine.model.weight_files import WeightFiles, Weights

Dtype = Literal["bfloat16", "float32"]
DTYPES: dict[Dtype, torch.dtype] = {"bfloat16": torch.bfloat16, "float32": torch.float32}


def load_transformer(files: WeightFiles, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> Transformer:
    """Read the weights once, fuse what is computed together, and convert tensor by tensor. Raises WeightsError."""
    with Weights(files.paths) as weights:
        loader = _Loader(weights, config, dtype, device)
        model = loader.transformer()
        # Old checkpoints store the rotation's frequencies; some store a tied head a second time.
        weights.refuse_leftovers(("rotary_emb.inv_freq", *(("lm_head.weight",) if config.tied_head else ())))
    return model


class _Loader:
    def __init__(self, weights: Weights, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        self._weights = weights
        self._config = config
        self._dtype = dtype
        self._device = device

    def transformer(self) -> Transformer:
        config = self._config
        layers = tuple(self._layer(f"model.layers.{index}.") for index in range(config.layers))
        embedding = self._tensor("model.embed_tokens.weight", config.vocab_size, config.hidden_size)
        norm = self._norm("model.norm.weight")
        tied = config.tied_head
        head = embedding if tied else self._tensor("lm_head.weight", config.vocab_size, config.hidden_size)
        return Transformer(config, embedding, layers, norm, Head(head))

    def _layer(self, prefix: str) -> Layer:
        config = self._config
        queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
        hidden, inner = config.hidden_size, config.intermediate_size
        attention, mlp = f"{prefix}self_attn.", f"{prefix}mlp."
        return Layer(
            attention_norm=self._norm(f"{prefix}input_layernorm.weight"),
            qkv=self._linear(
                hidden,
                {f"{attention}q_proj": queries, f"{attention}k_proj": keys, f"{attention}v_proj": keys},
                bias=config.qkv_bias,
            ),
            qk_norm=self._qk_norm(attention) if config.qk_norm else None,
            output=self._linear(queries, {f"{attention}o_proj": hidden}, bias=config.output_bias),
            mlp_norm=self._norm(f"{prefix}post_attention_layernorm.weight"),
            gate_up=self._linear(hidden, {f"{mlp}gate_proj": inner, f"{mlp}up_proj": inner}, bias=config.mlp_bias),
            down=self._linear(inner, {f"{mlp}down_proj": hidden}, bias=config.mlp_bias),
        )

    def _linear(self, inputs: int, parts: dict[str, int], *, bias: bool = False) -> Linear:
        """One linear layer that computes several of the file's, `parts` being their names and output sizes."""
        weight = torch.cat([self._weights.take(f"{name}.weight", (size, inputs)) for name, size in parts.items()])
        biases = [self._tensor(f"{name}.bias", size) for name, size in parts.items()] if bias else []
        return make_linear(weight.to(device=self._device, dtype=self._dtype), torch.cat(biases) if biases else None)

    def _qk_norm(self, attention: str) -> torch.Tensor:
        config = self._config
        query = self._tensor(f"{attention}q_norm.weight", config.head_dim)
        key = self._tensor(f"{attention}k_norm.weight", config.head_dim)
        return torch.cat((query.expand(config.heads, -1), key.expand(config.kv_heads, -1)))

    def _norm(self, name: str) -> torch.Tensor:
        weight = self._weights.take(name, (self._config.hidden_size,))
        return weight.to(device=self._device, dtype=torch.float32, copy=True)

    def _tensor(self, name: str, *shape: int) -> torch.Tensor:
        # Copied in any case: a view would keep the whole file mapped.
        return self._weights.take(name, shape).to(device=self._device, dtype=self._dtype, copy=True)
