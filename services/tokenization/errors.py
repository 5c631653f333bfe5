"""What can go wrong with a model's files, each with a message that says what to do."""

from __future__ import annotations

from services.platform.startup import StartupError


class ModelFilesError(StartupError):
    """The model cannot be found or read. The message names the file or name at fault and the way out."""


class ChatTemplateError(ValueError):
    """The model's chat template refuses these messages, or there is no chat template."""
