"""Rotary positions (arXiv:2104.09864) in the half-split form that Hugging Face's weights are made for."""

from __future__ import annotations

import math

import torch

from services.engine.model.rope_config import Llama3Scaling, RopeConfig


class Rotation:
    """Cosines and sines for the positions of a step, and their use on queries and keys."""

    def __init__(self, config: RopeConfig, head_dim: int, dtype: torch.dtype, device: torch.device) -> None:
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        frequencies = 1.0 / (config.theta**exponents)
        if config.scaling is not None:
            frequencies = _stretched(frequencies, config.scaling)
        self._frequencies = frequencies.to(device)
        self._dtype = dtype

    def tables(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosine and signed sine for `positions` [rows], each [rows, 1, head_dim]; computed in float32."""
        angles = positions[:, None].float() * self._frequencies
        cos, sin = angles.cos().to(self._dtype), angles.sin().to(self._dtype)
        return torch.cat((cos, cos), -1)[:, None], torch.cat((-sin, sin), -1)[:, None]


def rotate_(heads: torch.Tensor, cos: torch.Tensor, signed_sin: torch.Tensor) -> None:
    """Rotate `heads` [rows, heads, head_dim] in place.

    Swapping the halves and giving the sign to the sine is `x * cos + rotate_half(x) * sin` in fewer passes.
    """
    swapped = torch.roll(heads, heads.shape[-1] // 2, -1)
    heads.mul_(cos).addcmul_(swapped, signed_sin)


def _stretched(frequencies: torch.Tensor, scaling: Llama3Scaling) -> torch.Tensor:
    """Llama 3.1: long waves are slowed by the factor, short ones kept, those between blended."""
    wavelengths = 2 * math.pi / frequencies
    turns = scaling.original_max_position_embeddings / wavelengths
    smooth = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    smooth = smooth.clamp(0.0, 1.0)
    return (1 - smooth) * frequencies / scaling.factor + smooth * frequencies
