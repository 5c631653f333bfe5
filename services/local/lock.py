"""One command at a time may change a stack."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from services.local.errors import StackError


@contextmanager
def stack_lock(path: Path) -> Iterator[None]:
    """Hold the folder's lock; it goes by itself when its holder dies. Raises StackError when another holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            other = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
            raise StackError(
                f"another command (pid {other}) is starting or stopping the stack of {path.parent}"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)
