"""The KV memory of all sequences, in blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from services.engine.model.config import ModelConfig
from services.engine.runner import KvLayout


class KvPool:
    """One tensor [block, layer, key/value, head, token, head_dim].

    A block is contiguous over all layers, so exporting one is one copy; inside it the tokens of one head are, so the
    keys of a sequence are gathered as whole rows straight into the shape that the attention's matrix product wants.
    """

    def __init__(self, config: ModelConfig, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device):
        shape = (num_blocks, config.layers, 2, config.kv_heads, block_size, config.head_dim)
        self._data = _zeros(shape, dtype, device)
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.head_rows_per_block = config.layers * 2 * config.kv_heads
        heads = self._data.view(-1, block_size * config.head_dim)
        tokens = self._data.view(-1, config.head_dim)
        stride = 2 * config.kv_heads
        # Starting each layer's view at that layer lets one index, made for layer 0, serve them all.
        self.head_rows = [heads[layer * stride :] for layer in range(config.layers)]
        """Per layer: [rows, block_size * head_dim], one row for the tokens of one head of one block."""
        self.token_rows = [tokens[layer * stride * block_size :] for layer in range(config.layers)]
        """Per layer: [rows, head_dim], one row for one token of one head."""
        self._bytes = self._data.view(torch.uint8)

    @property
    def layout(self) -> KvLayout:
        _, layers, _, heads, block_size, head_dim = self._data.shape
        dtype = str(self._data.dtype).removeprefix("torch.")
        return KvLayout(
            block_size=block_size,
            bytes_per_block=self._data[0].numel() * self._data.element_size(),
            dtype=dtype,
            description=(
                f"[layer={layers}, key/value=2, head={heads}, token, dim={head_dim}] {dtype} little-endian, "
                "keys rotated by halves"
            ),
        )

    def read(self, block: int, tokens: int) -> bytes:
        """The first `tokens` tokens of a block, contiguous."""
        return self._bytes[block, :, :, :, :tokens].cpu().numpy().tobytes()

    def write(self, block: int, tokens: int, payload: memoryview) -> None:
        """Inverse of `read`; the rest of the block becomes zero. ValueError for a payload of another length."""
        target = self._bytes[block, :, :, :, :tokens]
        if payload.nbytes != target.numel():
            raise ValueError(f"{payload.nbytes} bytes for {tokens} tokens of a block, which take {target.numel()}")
        source = np.frombuffer(payload, dtype=np.uint8).reshape(target.shape).copy()
        target.copy_(torch.from_numpy(source))
        self._bytes[block, :, :, :, tokens:].zero_()

    def copy(self, source: int, target: int) -> None:
        self._data[target].copy_(self._data[source])

    def clear(self, blocks: Sequence[int]) -> None:
        """Zero whole blocks."""
        for block in blocks:
            self._data[block].zero_()


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # torch.zeros writes every page; numpy takes zeroed ones of the system, which cost nothing until they are used.
    return torch.from_numpy(np.zeros(math.prod(shape) * dtype.itemsize, dtype=np.uint8)).view(dtype).view(shape)
