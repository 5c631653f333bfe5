"""Which ports a stack listens on."""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from services.local.errors import StackError

LOOPBACK = "127.0.0.1"
GATEWAY_DEFAULT = 8000
GATEWAY_TRIES = 50
# Below the range from which the kernel takes the local ports of outgoing connections (32768 and up), so that
# no connection can take a port between the choice and the moment its service listens.
INTERNAL_FIRST, INTERNAL_LAST, BLOCK = 20000, 32000, 64


def is_free(port: int) -> bool:
    """Whether a server could listen on this loopback port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def holder(port: int) -> str:
    """Who listens on a port, in words; the system tells only about one's own processes unless one is root."""
    try:
        for connection in psutil.net_connections(kind="tcp"):
            # laddr is an empty tuple or (address, port)
            if connection.status == psutil.CONN_LISTEN and port in connection.laddr[1:] and connection.pid:
                return f"{psutil.Process(connection.pid).name()} (pid {connection.pid})"
    except psutil.Error:
        pass
    return "a stack that is just starting" if is_free(port) else "another process"


@contextmanager
def gateway_port(asked: int) -> Iterator[tuple[int, str]]:
    """The gateway's port and, when it is not the usual one, why. Raises StackError when the asked one is busy.

    The gateway listens on it only seconds later, so while the block runs no other start of this user takes it.
    """
    for port in [asked] if asked else range(GATEWAY_DEFAULT, GATEWAY_DEFAULT + GATEWAY_TRIES):
        with _reserved(port) as ours:
            if ours and is_free(port):
                moved = f"port {GATEWAY_DEFAULT} is in use by {holder(GATEWAY_DEFAULT)}, so the gateway takes {port}"
                yield port, "" if port in (asked, GATEWAY_DEFAULT) else moved
                return
    if asked:
        raise StackError(
            f"port {asked} (TOKENPATH_LOCAL_GATEWAY_PORT) is in use by {holder(asked)}; end it or choose another"
        )
    raise StackError(f"no free port from {GATEWAY_DEFAULT} to {port}; set TOKENPATH_LOCAL_GATEWAY_PORT")


@contextmanager
def _reserved(port: int) -> Iterator[bool]:
    """Hold a port's lock; whether nobody else holds it. It goes by itself when its holder dies."""
    folder = Path(tempfile.gettempdir()) / f"tokenpath-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(folder / f"port-{port}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise StackError(f"port {port} can't be reserved in {folder}: {error.strerror}; set TMPDIR") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        ours = True
    except BlockingIOError:
        ours = False
    try:
        yield ours
    finally:
        os.close(descriptor)


def internal_ports(names: Iterable[str], folder: Path) -> dict[str, int]:
    """A free port for each name. A folder starts in a block of its own, so its ports rarely change and two
    stacks that start at the same moment do not choose the same ones."""
    free = _free_ports(folder)
    try:
        return {name: next(free) for name in names}
    except StopIteration:
        raise StackError(f"no free ports between {INTERNAL_FIRST} and {INTERNAL_LAST}") from None


def _free_ports(folder: Path) -> Iterator[int]:
    blocks = (INTERNAL_LAST - INTERNAL_FIRST) // BLOCK
    first = INTERNAL_FIRST + BLOCK * (zlib.crc32(str(folder.resolve()).encode()) % blocks)
    for offset in range(INTERNAL_LAST - INTERNAL_FIRST):
        port = INTERNAL_FIRST + (first - INTERNAL_FIRST + offset) % (INTERNAL_LAST - INTERNAL_FIRST)
        if is_free(port):
            yield port
