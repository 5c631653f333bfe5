"""How positions rotate, read from a Hugging Face configuration of either generation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from services.engine.model.errors import UnsupportedModelError


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3.1's stretching of the slow frequencies."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True, slots=True)
class RopeConfig:
    theta: float
    scaling: Llama3Scaling | None = None


def read_rope(raw: Mapping[str, Any]) -> RopeConfig:
    """From `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (before).

    Raises UnsupportedModelError for a kind of scaling that isn't computed here: running without it gives wrong text.
    """
    parameters: Mapping[str, Any] = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    theta = float(parameters.get("rope_theta") or raw.get("rope_theta") or 10_000.0)
    if float(parameters.get("partial_rotary_factor") or raw.get("partial_rotary_factor") or 1.0) != 1.0:
        raise UnsupportedModelError("partial_rotary_factor other than 1 is not supported")
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if kind == "default":
        return RopeConfig(theta)
    if kind == "llama3":
        return RopeConfig(
            theta,
            Llama3Scaling(
                factor=float(parameters["factor"]),
                low_freq_factor=float(parameters["low_freq_factor"]),
                high_freq_factor=float(parameters["high_freq_factor"]),
                original_max_position_embeddings=int(parameters["original_max_position_embeddings"]),
            ),
        )
    raise UnsupportedModelError(f"rope scaling {kind!r} is not supported; supported are 'default' and 'llama3'")
