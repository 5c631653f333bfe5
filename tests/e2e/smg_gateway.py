"""smg, an inference gateway that others wrote, in front of workers of ours."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from services.tokenization.source import DEFAULT_MODEL, resolve_model
from tests.e2e.metrics import samples, total
from tests.fakes import free_port

_START_S = 40.0


@dataclass(frozen=True)
class Smg:
    """A gateway that serves."""

    url: str
    metrics_url: str
    log: Path

    def metric(self, name: str) -> float:
        """The sum of a metric over its labels; 0 while there is none."""
        return total(samples(self.metrics_url), name)


@contextmanager
def smg_gateway(folder: Path, workers: int, *options: str) -> Iterator[Smg]:
    """Run `smg launch` until the block ends. It is ready when `workers` workers serve."""
    port, metrics_port = free_port(), free_port()
    command = [
        *(str(Path(sys.executable).with_name("smg")), "launch", "--host", "127.0.0.1", "--port", str(port)),
        *("--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics_port)),
        *("--model-path", str(resolve_model(DEFAULT_MODEL, weights=False).folder), "--policy", "round_robin"),
        *options,
    ]
    smg = Smg(f"http://127.0.0.1:{port}", f"http://127.0.0.1:{metrics_port}/metrics", folder / "smg.log")
    with smg.log.open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        _wait_until_ready(smg, workers, process)
        yield smg
    finally:
        process.kill()  # its own shutdown takes seconds and has nothing to save
        process.wait()


def pair(prefill: str, decode: str) -> Sequence[str]:
    """Options for prefill and decode apart; addresses are host:port."""
    return ("--pd-disaggregation", "--prefill", f"grpc://{prefill}", "none", "--decode", f"grpc://{decode}")


def _wait_until_ready(smg: Smg, workers: int, process: subprocess.Popen[bytes]) -> None:
    give_up = time.monotonic() + _START_S
    while True:
        try:
            if httpx.get(f"{smg.url}/readiness", timeout=1).json().get("healthy_workers") == workers:
                return
        except (httpx.HTTPError, ValueError):
            pass
        if process.poll() is not None or time.monotonic() > give_up:
            raise AssertionError(f"smg is not ready:\n{smg.log.read_text(errors='replace')[-3000:]}")
        time.sleep(0.05)
