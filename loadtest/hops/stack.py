"""A private stack for the bench: scripted engine, free ports, a temporary folder, gone afterwards."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from loadtest.hops.job import Job
from loadtest.models import served_model
from services.local.config import PREFIX, StackConfig
from services.local.down import take_down
from services.local.folder import StackFolder
from services.local.plan import service_names
from services.local.up import bring_up

PATH = "/v1/chat/completions"


@dataclass(frozen=True)
class BenchStack:
    """A running stack: where it listens, and the pids of what runs."""

    host: str
    port: int
    api_key: str
    model: str
    services: dict[str, int]  # process name -> pid, the seven services (workers included)
    helpers: dict[str, int]  # Redis and the trace collector

    @property
    def authorization(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.api_key}"}

    def job(self, bodies: list[str], clients: int) -> Job:
        return Job(self.host, self.port, PATH, self.authorization, bodies, clients)


@contextmanager
def bench_stack(mode: str) -> Iterator[BenchStack]:
    """Start a stack in `mode`; take it down at the end, also after an error. Raises StackError."""
    config = StackConfig(engine="scripted", mode=mode, gateway_port=_free_port())
    # Options of the user's own stack are none of the bench's.
    environment = {key: value for key, value in os.environ.items() if not key.startswith(PREFIX)}
    with tempfile.TemporaryDirectory(prefix="tokenpath-bench-") as folder:
        home = StackFolder(Path(folder))
        record, _ = bring_up(home, config, environment, _say)
        try:
            names = service_names(config)
            pids = {process.name: process.pid for process in record.processes}
            yield BenchStack(
                host="127.0.0.1",
                port=config.gateway_port,
                api_key=record.api_key,
                model=served_model(record.urls["gateway"], record.api_key),
                services={name: pid for name, pid in pids.items() if name in names},
                helpers={name: pid for name, pid in pids.items() if name not in names},
            )
        finally:
            take_down(home, _say)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _say(line: str) -> None:
    print(f"  {line}", file=sys.stderr, flush=True)
