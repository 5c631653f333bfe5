"""Telling one's own processes from strangers: a process is a pid and the moment it started."""

from __future__ import annotations

from pathlib import Path

import psutil


def start_mark(pid: int) -> str | None:
    """When the process of this pid started, as a mark to compare; None when there is none or it has ended.

    Linux counts it in ticks since boot, which a clock that is set does not change.
    """
    try:
        # The second field is the program's name in brackets and may itself hold spaces and brackets.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] in ("Z", "X") else fields[19]
    except (FileNotFoundError, ProcessLookupError):
        if Path("/proc/self/stat").exists():
            return None
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else f"{process.create_time():.2f}"
    except psutil.NoSuchProcess:
        return None


def memory_bytes(pid: int) -> tuple[int, int]:
    """Resident and proportional memory (RSS, PSS) of a process; shared pages count in parts in PSS. (0, 0) if gone."""
    try:
        process = psutil.Process(pid)
        resident = int(process.memory_info().rss)
        return resident, int(getattr(process.memory_full_info(), "pss", resident))
    except psutil.NoSuchProcess:
        return 0, 0
    except psutil.AccessDenied:
        return resident, resident
