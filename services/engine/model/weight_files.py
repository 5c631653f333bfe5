"""Which safetensors files hold a model's weights, and the tensors in them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open

from services.engine.model.config import ModelConfig
from services.engine.model.errors import WeightsError

_SAMPLES = 64
_SAMPLE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class WeightFiles:
    """`folder` has the configuration; `paths` the weights, in one file or sharded."""

    folder: Path
    paths: tuple[Path, ...]


def find_weight_files(folder: Path) -> WeightFiles:
    """`model.safetensors`, or the shards that `model.safetensors.index.json` names. Raises WeightsError."""
    single = folder / "model.safetensors"
    if single.is_file():
        return WeightFiles(folder, (single,))
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        raise WeightsError(
            f"{folder} has neither model.safetensors nor model.safetensors.index.json; download the weights"
        )
    try:
        shards = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
    except (ValueError, KeyError, AttributeError) as error:
        raise WeightsError(f"{index} is not an index of shards ({error!r}); fetch it again") from error
    missing = [shard for shard in shards if not (folder / shard).is_file()]
    if missing:
        raise WeightsError(f"{folder} lacks {', '.join(missing)}, which {index.name} names; fetch them")
    return WeightFiles(folder, tuple(folder / shard for shard in shards))


def weights_digest(files: WeightFiles, config: ModelConfig) -> str:
    """32 hex digits of the configuration and of sizes, headers and samples spread over the files.

    Every byte of a large model would take each start many seconds; no training step leaves the samples unchanged.
    """
    digest = hashlib.blake2b(repr(config).encode(), digest_size=16)
    for path in files.paths:
        size = path.stat().st_size
        digest.update(size.to_bytes(8, "little"))
        with path.open("rb") as file:
            digest.update(file.read(8 + int.from_bytes(file.read(8), "little")))
            for sample in range(_SAMPLES):
                file.seek(sample * max(0, size - _SAMPLE_BYTES) // (_SAMPLES - 1))
                digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()


class Weights:
    """The tensors of a model's files, each to be taken once; a context manager that closes the files."""

    def __init__(self, paths: Sequence[Path]) -> None:
        try:
            self._files: list[Any] = [safe_open(path, framework="pt") for path in paths]  # its methods are untyped
        except (SafetensorError, OSError) as error:
            names = ", ".join(path.name for path in paths)
            raise WeightsError(f"cannot read {names} in {paths[0].parent} ({error}); fetch the file again") from error
        self._owners = {name: file for file in self._files for name in file.keys()}  # noqa: SIM118 - no mapping
        self._folder = paths[0].parent

    def take(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """The tensor as stored. Raises WeightsError when it is missing or of another shape."""
        owner = self._owners.pop(name, None)
        if owner is None:
            raise WeightsError(f"the weights in {self._folder} lack {name}; they don't belong to this config.json")
        tensor: torch.Tensor = owner.get_tensor(name)
        if tuple(tensor.shape) != shape:
            raise WeightsError(
                f"{name} in {self._folder} has shape {list(tensor.shape)}, config.json says {list(shape)}"
            )
        return tensor

    def refuse_leftovers(self, ignored: Sequence[str]) -> None:
        """Raise WeightsError for tensors that nobody took: the model has parts that would be left out."""
        left = sorted(name for name in self._owners if not name.endswith(tuple(ignored)))
        if left:
            raise WeightsError(
                f"the weights in {self._folder} have {len(left)} tensors of an unknown use, like {left[0]}"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._owners.clear()
        self._files.clear()
