"""Why a model can't be run here, with the file or key at fault and the way out."""

from __future__ import annotations

from services.platform.startup import StartupError


class UnsupportedModelError(StartupError):
    """The model is of a kind, or uses a feature, that this engine doesn't compute."""


class WeightsError(StartupError):
    """The weight files are missing, damaged, or don't fit the configuration."""
