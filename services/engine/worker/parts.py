"""What a worker is made of once its model is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from services.engine.async_engine import AsyncEngine
from services.engine.runner import KvLayout, ModelDescription
from services.engine.stats import EngineStats
from services.engine.worker.settings import WorkerSettings
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
        """A prompt given as text -> token ids, as /v1/completions does it."""
        return self.tokenizer.encode(text, add_special_tokens=True)
