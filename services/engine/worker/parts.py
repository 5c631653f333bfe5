"""What a worker is made of once its model is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from services.engine.async_engine import AsyncEngine
from services.engine.runner import KvLayout, ModelDescription
from services.engine.stats import EngineStats
from services.engine.worker.settings import WorkerSettings
from services.engine.worker.validation import invalid
from services.platform.fleet import WorkerRecord
from services.platform.telemetry import Telemetry
from services.tokenization.source import ModelFiles
from services.tokenization.tokenizer import Tokenizer


@dataclass(frozen=True)
class WorkerParts:
    """Shared by the servicers and the role."""

    settings: WorkerSettings
    telemetry: Telemetry
    engine: AsyncEngine
    stats: EngineStats
    model: ModelDescription
    layout: KvLayout
    tokenizer: Tokenizer
    files: ModelFiles
    record: WorkerRecord

    def tokenise(self, text: str) -> Sequence[int]:
        """A prompt given as text -> token ids, as /v1/completions does it. Raises Failure for one that can't fit."""
        limit = self.engine.settings.max_model_len
        if len(text) > limit * self.tokenizer.max_token_bytes:  # encoding it first would hold up every stream
            raise invalid("text", f"has {len(text)} characters, too many for a context of {limit} tokens")
        return self.tokenizer.encode(text, add_special_tokens=True)
