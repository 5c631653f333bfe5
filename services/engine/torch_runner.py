"""The Runner that computes with PyTorch."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch

from services.engine.model.config import ModelConfig, read_config
from services.engine.model.convert import ensure_converted
from services.engine.model.kv_pool import KvPool
from services.engine.model.linear import packing_works
from services.engine.model.load import DTYPES, Dtype, load_transformer
from services.engine.model.step import StepPlanner
from services.engine.model.transformer import Transformer
from services.engine.model.weight_files import WeightFiles, find_weight_files, weights_digest
from services.engine.runner import KvLayout, ModelDescription, Sampled, SequenceSlice
from services.engine.sampling.sampler import sample_rows
from services.tokenization.source import ModelFiles

_log = logging.getLogger(__name__)


class TorchRunner:
    """A model on one device with its KV pool; to be called from one thread."""

    def __init__(self, model: Transformer, description: ModelDescription, *, num_blocks: int, block_size: int) -> None:
        self._model = model
        self._description = description
        self._pool = KvPool(model.config, num_blocks, block_size, model.dtype, model.device)
        self._planner = StepPlanner(model.config, self._pool, model.dtype, model.device)

    @classmethod
    def load(
        cls,
        files: ModelFiles,
        *,
        num_blocks: int,
        block_size: int = 16,
        dtype: Dtype = "bfloat16",
        device: str = "cpu",
        threads: int | None = None,
    ) -> TorchRunner:
        """Load a resolved model; `threads` sets torch's threads of this process.

        Raises UnsupportedModelError for a model that can't be computed, WeightsError for files that don't fit.
        """
        if threads is not None:
            torch.set_num_threads(threads)
        weight_files = _weight_files(files, dtype)
        config = read_config(weight_files.folder)
        with torch.inference_mode():
            model = load_transformer(weight_files, config, DTYPES[dtype], torch.device(device))
            if model.device.type == "cpu" and not packing_works(model.dtype):
                _log.warning("this CPU or torch build has no packed %s linears; steps take about twice as long", dtype)
            description = _description(files.name, config, weights_digest(weight_files, config))
            return cls(model, description, num_blocks=num_blocks, block_size=block_size)

    @property
    def layout(self) -> KvLayout:
        return self._pool.layout

    @property
    def model(self) -> ModelDescription:
        return self._description

    @property
    def num_blocks(self) -> int:
        return self._pool.num_blocks

    def execute(self, batch: Sequence[SequenceSlice]) -> list[Sampled | Exception | None]:
        """See Runner; a slice that can't be run is a ValueError in its place."""
        problems = [self._problem(item) for item in batch]
        results: list[Sampled | Exception | None] = [ValueError(text) if text else None for text in problems]
        runnable = [index for index, text in enumerate(problems) if not text]
        if not runnable:
            return results
        with torch.inference_mode():
            plan = self._planner.plan([batch[index] for index in runnable])
            # A masked key still meets a weight of zero, and zero times what an earlier sequence left may be NaN.
            self._pool.clear(plan.unfinished_blocks)
            logits = self._model.forward(plan, self._pool).cpu().numpy()
        sampled = [runnable[index] for index in plan.sampled]
        requests = [request for index in sampled if (request := batch[index].sample) is not None]
        for index, result in zip(sampled, sample_rows(logits, requests), strict=True):
            results[index] = result
        return results

    def read_block(self, block_id: int, tokens: int) -> bytes:
        return self._pool.read(block_id, tokens)

    def write_block(self, block_id: int, tokens: int, payload: memoryview) -> None:
        with torch.inference_mode():
            self._pool.write(block_id, tokens, payload)

    def copy_block(self, source: int, target: int) -> None:
        with torch.inference_mode():
            self._pool.copy(source, target)

    def close(self) -> None:
        """Drop weights and pool; the process gives the memory back as far as its allocator does."""
        del self._model, self._pool, self._planner

    def _problem(self, item: SequenceSlice) -> str:
        """Why this slice would break the step for its neighbours, or nothing."""
        model, end = self._description, item.start + len(item.token_ids)
        if not item.token_ids:
            return "the slice has no token"
        if min(item.token_ids) < 0 or max(item.token_ids) >= model.vocab_size:
            return f"a token id is outside the vocabulary (0 to {model.vocab_size - 1})"
        if item.start < 0 or end > model.max_model_len:
            return f"positions {item.start} to {end} are outside the model's length of {model.max_model_len}"
        blocks = item.block_ids[: -(-end // self._pool.block_size)]
        if len(blocks) * self._pool.block_size < end:
            return f"{len(blocks)} blocks of {self._pool.block_size} tokens don't reach position {end}"
        if min(blocks) < 0 or max(blocks) >= self._pool.num_blocks:
            return f"a block id is outside the pool of {self._pool.num_blocks}"
        return ""


def _weight_files(files: ModelFiles, dtype: str) -> WeightFiles:
    if files.gguf_path is None:
        return find_weight_files(files.folder)
    return WeightFiles(files.folder, (ensure_converted(files.gguf_path, files.folder, dtype),))


def _description(name: str, config: ModelConfig, digest: str) -> ModelDescription:
    return ModelDescription(
        name=name,
        architecture=config.architecture,
        vocab_size=config.vocab_size,
        max_model_len=config.max_model_len,
        eos_token_ids=config.eos_token_ids,
        weights_digest=digest,
    )
