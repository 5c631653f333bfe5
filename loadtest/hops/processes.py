"""Helper processes of the bench: started as modules, ended when the block ends."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from loadtest.hops.job import Job, Result

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def child(module: str) -> Iterator[subprocess.Popen[str]]:
    """`python -m module` with its stdout as a pipe; SIGTERM at the end, SIGKILL after 10 s."""
    process = subprocess.Popen([sys.executable, "-m", module], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def first_line(process: subprocess.Popen[str]) -> str:
    """The first line it prints. Raises RuntimeError when it ends without one."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"a helper process ended with status {process.wait(10)} before it was ready")
    return line.strip()


def run_job(job: Job, limit_s: float = 300.0) -> Result:
    """Run `job` in a process of its own. Raises RuntimeError with its message when a request failed."""
    command = [sys.executable, "-m", "loadtest.hops.client"]
    ended = subprocess.run(
        command, cwd=ROOT, input=job.to_json(), capture_output=True, text=True, timeout=limit_s, check=False
    )
    if ended.returncode:
        raise RuntimeError(f"the load process failed:\n{ended.stderr[-2000:]}")
    return Result.from_json(ended.stdout)
