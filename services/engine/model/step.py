"""From the slices of a step to the index tensors that the forward pass reads and writes by."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from services.engine.model.config import ModelConfig
from services.engine.model.kv_pool import KvPool
from services.engine.runner import SequenceSlice

_TILE = 128
"""Queries of one sequence attended at once. Each tile sees only the keys up to its own end, which halves the work of a
long prompt, and the scores of a tile stay in the cache."""

_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """Rows that attend in one batched matrix product: either one row of several sequences, or several rows of one."""

    first_row: int
    sequences: int
    queries: int
    """Rows of each sequence."""
    gather: torch.Tensor
    """Rows of `KvPool.head_rows`, ordered [key/value, sequence, head, block], flattened."""
    bias: torch.Tensor
    """0 where a query may look and minus infinity elsewhere; broadcasts to [sequences * kv_heads, queries of all heads
    of a group, keys]."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    tokens: torch.Tensor
    """[rows] token ids."""
    positions: torch.Tensor
    """[rows]."""
    write: torch.Tensor
    """[rows * 2 * kv_heads] rows of `KvPool.token_rows` that take the new keys and values."""
    groups: tuple[AttentionGroup, ...]
    sample_rows: torch.Tensor
    """[samples] rows whose logits are wanted."""
    sampled: tuple[int, ...]
    """For each sample, the index of its slice in the batch."""
    unfinished_blocks: tuple[int, ...]
    """Blocks that get their first token but not their last in this step."""


class StepPlanner:
    """Makes a StepPlan for a batch; pure index arithmetic on the CPU."""

    def __init__(self, config: ModelConfig, pool: KvPool, dtype: torch.dtype, device: torch.device) -> None:
        self._kv_heads = config.kv_heads
        self._group_size = config.heads // config.kv_heads
        self._block_size = pool.block_size
        self._rows_per_block = pool.head_rows_per_block
        self._dtype = dtype
        self._device = device

    def plan(self, batch: Sequence[SequenceSlice]) -> StepPlan:
        # Single rows first and by length: neighbours of like length share a group with little padding.
        order = sorted(
            range(len(batch)), key=lambda i: (len(batch[i].token_ids) > 1, batch[i].start + len(batch[i].token_ids))
        )
        slices = [batch[index] for index in order]
        ends = np.cumsum([len(item.token_ids) for item in slices])
        positions = np.concatenate(
            [np.arange(item.start, item.start + len(item.token_ids), dtype=np.int64) for item in slices]
        )
        sampled = [(index, int(end) - 1) for index, end in zip(order, ends, strict=True) if batch[index].sample]
        singles = sum(len(item.token_ids) == 1 for item in slices)
        groups = [*self._decode_groups(slices[:singles]), *self._prefill_groups(slices[singles:], first_row=singles)]
        return StepPlan(
            tokens=self._index(np.concatenate([np.asarray(item.token_ids, dtype=np.int64) for item in slices])),
            positions=self._index(positions),
            write=self._index(self._write_rows(slices, positions)),
            groups=tuple(groups),
            sample_rows=self._index(np.array([row for _, row in sampled], dtype=np.int64)),
            sampled=tuple(index for index, _ in sampled),
            unfinished_blocks=tuple(block for item in slices for block in self._unfinished(item)),
        )

    def _write_rows(self, slices: Sequence[SequenceSlice], positions: _Ints) -> _Ints:
        blocks = np.concatenate(
            [
                np.asarray(item.block_ids, dtype=np.int64)[
                    np.arange(item.start, item.start + len(item.token_ids)) // self._block_size
                ]
                for item in slices
            ]
        )
        heads = blocks[:, None] * self._rows_per_block + np.arange(2 * self._kv_heads)
        return (heads * self._block_size + positions[:, None] % self._block_size).ravel()

    def _decode_groups(self, slices: Sequence[SequenceSlice]) -> Iterator[AttentionGroup]:
        first = 0
        while first < len(slices):
            shortest = self._blocks(slices[first].start + 1)
            end = first + 1
            while end < len(slices) and self._blocks(slices[end].start + 1) <= 2 * shortest + 2:
                end += 1
            lengths = np.array([item.start + 1 for item in slices[first:end]])
            width = self._blocks(int(lengths.max()))
            # Short rows are padded with their own first block: it is theirs, so what it holds is finite.
            blocks = np.array(
                [
                    [*item.block_ids[: self._blocks(item.start + 1)], *(item.block_ids[0],) * width][:width]
                    for item in slices[first:end]
                ]
            )
            seen = np.arange(width * self._block_size) < lengths[:, None]
            bias = self._bias(seen)[:, None].repeat_interleave(self._kv_heads, 0)
            yield AttentionGroup(first, end - first, 1, self._gather(blocks), bias)
            first = end

    def _prefill_groups(self, slices: Sequence[SequenceSlice], first_row: int) -> Iterator[AttentionGroup]:
        for item in slices:
            for offset in range(0, len(item.token_ids), _TILE):
                queries = min(_TILE, len(item.token_ids) - offset)
                start = item.start + offset
                width = self._blocks(start + queries)
                blocks = np.array([item.block_ids[:width]])
                seen = np.arange(width * self._block_size) <= np.arange(start, start + queries)[:, None]
                bias = self._bias(seen).repeat(self._group_size, 1)[None]
                yield AttentionGroup(first_row + offset, 1, queries, self._gather(blocks), bias)
            first_row += len(item.token_ids)

    def _gather(self, blocks: _Ints) -> torch.Tensor:
        """From blocks [sequence, block]."""
        heads = np.arange(2 * self._kv_heads).reshape(2, 1, self._kv_heads, 1)
        return self._index((blocks[None, :, None, :] * self._rows_per_block + heads).ravel())

    def _bias(self, seen: npt.NDArray[np.bool_]) -> torch.Tensor:
        bias = np.where(seen, np.float32(0), np.float32(-np.inf))
        return torch.from_numpy(bias).to(device=self._device, dtype=self._dtype)

    def _unfinished(self, item: SequenceSlice) -> Sequence[int]:
        end = item.start + len(item.token_ids)
        last = end // self._block_size
        begun = end % self._block_size != 0 and item.start <= last * self._block_size
        return (item.block_ids[last],) if begun else ()

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self._block_size)

    def _index(self, values: _Ints) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(values, dtype=np.int64)).to(self._device)
