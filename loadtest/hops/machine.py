"""Where the figures come from: they say little about another machine."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path


@dataclass(frozen=True)
class Machine:
    cores: int
    cpu: str
    python: str
    grpcio: str
    load_average_before: float  # of the last minute; above 0.5 something else was running


def machine() -> Machine:
    return Machine(os.cpu_count() or 0, _cpu(), platform.python_version(), version("grpcio"), os.getloadavg()[0])


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
