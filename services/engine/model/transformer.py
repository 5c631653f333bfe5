"""The forward pass of a Llama, Qwen2 or Qwen3 decoder over one step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from services.engine.model.attention import PagedAttention
from services.engine.model.config import ModelConfig
from services.engine.model.head import Head
from services.engine.model.kv_pool import KvPool
from services.engine.model.linear import Linear
from services.engine.model.rope import Rotation, rotate_
from services.engine.model.step import StepPlan


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's weights; those of its two norms are float32, as what they are applied to."""

    attention_norm: torch.Tensor
    qkv: Linear
    """hidden -> queries, keys and values of all heads, in this order."""
    qk_norm: torch.Tensor | None
    """[heads + kv_heads, head_dim], or None where heads aren't normalised."""
    output: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear
    """hidden -> gate, then up."""
    down: Linear


class Transformer:
    """Weights and the order of the computation; keeps no state between steps."""

    def __init__(
        self,
        config: ModelConfig,
        embedding: torch.Tensor,
        layers: tuple[Layer, ...],
        norm: torch.Tensor,
        head: Head,
    ) -> None:
        self.config = config
        self.dtype = embedding.dtype
        self.device = embedding.device
        self._embedding = embedding
        self._layers = layers
        self._norm = norm
        self._head = head
        self._rotation = Rotation(config.rope, config.head_dim, self.dtype, self.device)

    def forward(self, plan: StepPlan, pool: KvPool) -> torch.Tensor:
        """Write the step's keys and values into the pool; returns float32 logits [samples, vocabulary]."""
        config = self.config
        # The sum that all layers add to stays in float32: rounding it 60 times in bfloat16 changes answers, and costs
        # as much as not rounding it.
        hidden = F.embedding(plan.tokens, self._embedding).float()
        cos, sin = self._rotation.tables(plan.positions)
        attend = PagedAttention(config.heads, config.kv_heads, config.head_dim, plan.groups)
        for layer, head_rows, token_rows in zip(self._layers, pool.head_rows, pool.token_rows, strict=True):
            qkv = layer.qkv(self._input(hidden, layer.attention_norm)).view(hidden.shape[0], -1, config.head_dim)
            rotated = qkv[:, : config.heads + config.kv_heads]
            if layer.qk_norm is not None:
                rotated.copy_(F.rms_norm(rotated, (config.head_dim,), None, config.rms_norm_eps) * layer.qk_norm)
            rotate_(rotated, cos, sin)
            token_rows.index_copy_(0, plan.write, qkv[:, config.heads :].reshape(-1, config.head_dim))
            hidden = hidden + layer.output(attend(qkv[:, : config.heads], head_rows))
            gate, up = layer.gate_up(self._input(hidden, layer.mlp_norm)).chunk(2, -1)
            hidden = hidden + layer.down(F.silu(gate) * up)
        return self._head.logits(self._normalised(hidden[plan.sample_rows], self._norm))

    def _input(self, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return self._normalised(rows, weight).to(self.dtype)

    def _normalised(self, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(rows, weight.shape, weight, self.config.rms_norm_eps)
