"""The runner and tokenizer that a worker's settings ask for."""

from __future__ import annotations

from dataclasses import dataclass

from services.engine.pacing import Pacer
from services.engine.runner import Runner
from services.engine.script import ScriptReader
from services.engine.scripted_runner import ScriptedRunner
from services.engine.worker.settings import WorkerSettings
from services.tokenization.source import ModelFiles, resolve_model
from services.tokenization.tokenizer import Tokenizer


@dataclass(frozen=True)
class LoadedModel:
    files: ModelFiles
    tokenizer: Tokenizer
    runner: Runner
    pacer: Pacer | None


def load_model(settings: WorkerSettings) -> LoadedModel:
    """Takes seconds, so call it outside the event loop. Raises what the tokenizer and the model loader raise."""
    if settings.engine == "scripted":
        return _scripted(settings)
    # Imported here: a scripted worker starts in a tenth of the time without torch.
    from services.engine.torch_runner import TorchRunner

    files = resolve_model(settings.model)
    runner = TorchRunner.load(
        files,
        num_blocks=settings.kv_blocks,
        block_size=settings.block_size,
        dtype=settings.dtype,
        device=settings.device,
        threads=settings.threads,
    )
    return LoadedModel(files, Tokenizer.load(settings.model), runner, None)


def _scripted(settings: WorkerSettings) -> LoadedModel:
    files = resolve_model(settings.model, weights=False)
    tokenizer = Tokenizer.load(settings.model)
    runner = ScriptedRunner(
        ScriptReader(tokenizer),
        name=tokenizer.name,
        vocab_size=tokenizer.vocab_size,
        max_model_len=tokenizer.max_model_len,
        eos_token_id=min(tokenizer.eos_token_ids, default=0),
        num_blocks=settings.kv_blocks,
        block_size=settings.block_size,
    )
    return LoadedModel(files, tokenizer, runner, runner)
