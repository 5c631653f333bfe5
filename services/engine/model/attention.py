"""Attention of a step's rows over the keys and values in the pool."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from services.engine.model.step import AttentionGroup


class PagedAttention:
    """Gathers each group's pages and attends with plain batched products.

    On a CPU that is many times as fast as scaled_dot_product_attention for one query a sequence, and 2 to 3 times as
    fast for tiles of 128. The heads that share a key are queries of one product, so keys are never repeated.
    """

    def __init__(self, heads: int, kv_heads: int, head_dim: int, groups: Sequence[AttentionGroup]) -> None:
        """For one step: the scratch memory of its groups is shared by all layers."""
        self._kv_heads = kv_heads
        self._group_size = heads // kv_heads
        self._head_dim = head_dim
        self._groups = groups
        self._scratch: torch.Tensor | None = None

    def __call__(self, queries: torch.Tensor, head_rows: torch.Tensor) -> torch.Tensor:
        """`queries` [rows, heads, head_dim] over one layer's `KvPool.head_rows` -> [rows, heads * head_dim]."""
        result = queries.new_empty(queries.shape[0], queries.shape[1] * self._head_dim)
        for group in self._groups:
            rows = slice(group.first_row, group.first_row + group.sequences * group.queries)
            result[rows] = self._attend(queries[rows], head_rows, group)
        return result

    def _attend(self, queries: torch.Tensor, head_rows: torch.Tensor, group: AttentionGroup) -> torch.Tensor:
        keys, values = self._gathered(head_rows, group)
        shape = (group.sequences, group.queries, self._kv_heads, self._group_size, self._head_dim)
        grouped = queries.view(shape).permute(0, 2, 3, 1, 4).reshape(keys.shape[0], -1, self._head_dim)
        scores = torch.baddbmm(group.bias, grouped, keys.transpose(1, 2), alpha=self._head_dim**-0.5)
        mixed = torch.bmm(torch.softmax(scores, -1), values)
        shape = (group.sequences, self._kv_heads, self._group_size, group.queries, self._head_dim)
        return mixed.view(shape).permute(0, 3, 1, 2, 4).reshape(queries.shape[0], -1)

    def _gathered(self, head_rows: torch.Tensor, group: AttentionGroup) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values, each [sequences * kv_heads, tokens, head_dim]."""
        count = group.gather.numel()
        if self._scratch is None:
            most = max(item.gather.numel() for item in self._groups)
            self._scratch = head_rows.new_empty(most, head_rows.shape[1])
        gathered = torch.index_select(head_rows, 0, group.gather, out=self._scratch[:count])
        pairs = gathered.view(2, group.sequences * self._kv_heads, -1, self._head_dim)
        return pairs[0], pairs[1]
