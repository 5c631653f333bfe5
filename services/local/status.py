"""`tokenpath status`: what each process of the stack is doing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from services.local.probes import answers
from services.local.processes import memory_bytes
from services.local.records import ProcessRecord, StackRecord


@dataclass(frozen=True)
class ProcessStatus:
    """One line of the table. Memory in bytes: `rss` counts shared pages whole, `pss` in parts."""

    name: str
    pid: int
    ports: dict[str, int]
    health: str
    rss: int
    pss: int
    uptime_s: float


def statuses(record: StackRecord) -> Iterator[ProcessStatus]:
    """Look at every process of the stack, all at the same time: one that hangs costs one probe's time."""
    with ThreadPoolExecutor(max_workers=max(1, len(record.processes))) as pool:
        yield from pool.map(_look, record.processes)


def _look(process: ProcessRecord) -> ProcessStatus:
    alive = process.alive
    rss, pss = memory_bytes(process.pid) if alive else (0, 0)
    health = "gone" if not alive else "serving" if answers(process.probe) else "not serving"
    uptime = time.time() - process.started_unix if alive else 0.0
    return ProcessStatus(process.name, process.pid, process.ports, health, rss, pss, uptime)
