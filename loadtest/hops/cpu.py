"""CPU time of every process of a stack, between two moments."""

from __future__ import annotations

from collections.abc import Mapping

import psutil


class CpuMeter:
    """Counts from its making. User and system time of each process, all threads; the load process isn't one of them."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._processes = {name: psutil.Process(pid) for name, pid in pids.items()}
        self._start = self._read()

    def spent_s(self) -> dict[str, float]:
        """CPU seconds by process name since the meter was made. Raises psutil.NoSuchProcess if one has died."""
        return {name: now - self._start[name] for name, now in self._read().items()}

    def _read(self) -> dict[str, float]:
        times = {name: process.cpu_times() for name, process in self._processes.items()}
        return {name: spent.user + spent.system for name, spent in times.items()}
