"""The folder for files made from a model once and used by every process afterwards."""

from __future__ import annotations

import logging
import os
import tempfile
from pathlib import Path

CACHE_DIR_VARIABLE = "TOKENPATH_CACHE_DIR"

_log = logging.getLogger(__name__)


def cache_folder() -> Path:
    """`$TOKENPATH_CACHE_DIR`, else `~/.cache/tokenpath`, else a private folder in the system's temporary folder.

    The folder exists and can be written on return. Raises OSError when the folder that the variable names cannot be
    made: a folder that somebody chose is never silently replaced by another.
    """
    chosen = os.environ.get(CACHE_DIR_VARIABLE)
    if chosen:
        folder = Path(chosen).expanduser()
        folder.mkdir(parents=True, exist_ok=True)
        return folder
    try:
        folder = Path.home() / ".cache" / "tokenpath"
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK | os.X_OK):
            return folder
    except (OSError, RuntimeError):  # RuntimeError: this user has no home folder
        pass
    folder = _private_temporary_folder()
    _log.warning("the home folder cannot be written; models are cached in %s (set %s)", folder, CACHE_DIR_VARIABLE)
    return folder


def write_atomically(path: Path, content: bytes) -> None:
    """Write `content` so that a reader, or a process doing the same, sees all of it or the file before it."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _private_temporary_folder() -> Path:
    folder = Path(tempfile.gettempdir()) / f"tokenpath-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():  # its name can be guessed: another user may have put files there
        raise PermissionError(f"{folder} belongs to another user; set {CACHE_DIR_VARIABLE} to a folder of your own")
    return folder
