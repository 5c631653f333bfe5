"""Which ports a stack listens on."""

from __future__ import annotations

import socket
import zlib
from collections.abc import Iterable, Iterator
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
    return "another process"


def gateway_port(asked: int) -> tuple[int, str]:
    """The gateway's port and, when it is not the usual one, why. Raises StackError when the asked one is busy."""
    if asked:
        if not is_free(asked):
            raise StackError(
                f"port {asked} (TOKENPATH_LOCAL_GATEWAY_PORT) is in use by {holder(asked)}; end it or choose another"
            )
        return asked, ""
    for port in range(GATEWAY_DEFAULT, GATEWAY_DEFAULT + GATEWAY_TRIES):
        if is_free(port):
            moved = f"port {GATEWAY_DEFAULT} is in use by {holder(GATEWAY_DEFAULT)}, so the gateway listens on {port}"
            return port, "" if port == GATEWAY_DEFAULT else moved
    raise StackError(f"no free port from {GATEWAY_DEFAULT} to {port}; set TOKENPATH_LOCAL_GATEWAY_PORT")


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
