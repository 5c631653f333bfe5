"""Makes a GGUF model's weight files once: `python -m services.engine.model.convert [--model M] [--dtype D]`."""

from __future__ import annotations

import argparse
import fcntl
import json
import logging
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import cast

from services.engine.model.errors import UnsupportedModelError, WeightsError
from services.tokenization.cache import write_atomically
from services.tokenization.errors import ModelFilesError
from services.tokenization.source import DEFAULT_MODEL, ModelFiles, resolve_model

_VERSION = "1"  # change it when what is written changes: files of another version are made again
_METADATA = {"format": "pt", "tokenpath_conversion": _VERSION}
_FILE_NAMES = {"bfloat16": "model.safetensors", "float32": "model.float32.safetensors"}

_log = logging.getLogger(__name__)


def ensure_converted(gguf_path: Path, folder: Path, dtype: str) -> Path:
    """The safetensors file of `dtype` in `folder`, made together with `config.json` unless it is there.

    A bfloat16 model never needs the float32 file, which is twice as large and exact; each is made when first asked
    for. Processes that start at once wait for the one that came first. Raises UnsupportedModelError, or WeightsError
    when the disk is full.
    """
    path = folder / _FILE_NAMES[dtype]
    if _is_current(path):
        return path
    with (folder / ".weights.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _is_current(path):
            try:
                _convert(gguf_path, path, dtype)
            except OSError as error:
                raise WeightsError(f"cannot write {path}: {error.strerror or error}; free some space there") from error
    return path


def _is_current(path: Path) -> bool:
    """Whether the file was made by this version and is whole: a machine that lost power may have cut it."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length))
        made_by = header.pop("__metadata__", None)
        end = max(tensor["data_offsets"][1] for tensor in header.values())
    except (OSError, ValueError):
        return False
    return bool(made_by == _METADATA and path.stat().st_size == 8 + length + end)


def _convert(gguf_path: Path, path: Path, dtype: str) -> None:
    # Imported here: a start that finds its files made pays nothing for reading GGUF.
    from services.engine.model.gguf_weights import GgufModel

    begun = time.perf_counter()
    model = GgufModel(gguf_path)
    write_atomically(path.parent / "config.json", json.dumps(model.config(), indent=1).encode())
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            model.write_safetensors(file, dtype, _METADATA)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    seconds = time.perf_counter() - begun
    _log.info("wrote %s: %.0f MB in %.1f s", path.name, path.stat().st_size / 1e6, seconds)


def main() -> int:
    """Prepare a model's weights so that the first worker starts fast; 1 with a message when that isn't possible."""
    parser = argparse.ArgumentParser(description="Convert a GGUF model's weights into the cache folder, once.")
    parser.add_argument("--model", default=DEFAULT_MODEL, help="a .gguf file or a model's name")
    parser.add_argument("--dtype", default="bfloat16", choices=sorted(_FILE_NAMES))
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        files: ModelFiles = resolve_model(arguments.model)
        if files.kind == "gguf":
            ensure_converted(cast(Path, files.gguf_path), files.folder, arguments.dtype)
    except (ModelFilesError, UnsupportedModelError, WeightsError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
