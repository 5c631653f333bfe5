"""Starting and ending the processes of a stack. Ends only what the stack's record holds, by pid and start time."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from services.local import records
from services.local.errors import StackError
from services.local.folder import PROJECT, StackFolder
from services.local.interrupts import interrupts_deferred
from services.local.plan import DRAIN_S, ProcessPlan
from services.local.probes import answers
from services.local.processes import start_mark
from services.local.records import ProcessRecord, StackRecord

Report = Callable[[str], None]

STOP_GRACE_S = DRAIN_S + 5.0
LOG_TAIL_LINES = 20
_POLL_S = 0.1


class Supervisor:
    """Starts processes detached from this one and keeps `stack.json` up to date with each."""

    def __init__(self, folder: StackFolder, record: StackRecord, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self.record = record
        self._environment = environment
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, plan: ProcessPlan) -> ProcessRecord:
        """Start one process in a session of its own, its output in its log. Raises StackError if that fails."""
        log = self.folder.log(plan.name)
        log.parent.mkdir(parents=True, exist_ok=True)
        if plan.data is not None:
            plan.data.mkdir(parents=True, exist_ok=True)
        # An interrupt between start and record would leave a process that nobody knows of.
        with log.open("ab") as output, interrupts_deferred():
            started = time.time()
            try:
                child = subprocess.Popen(
                    plan.command,
                    env=plan.environment(self._environment),
                    cwd=PROJECT,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                raise StackError(f"{plan.name} can't be started: {error}") from error
            self._children[plan.name] = child
            mark = start_mark(child.pid) or ""
            process = ProcessRecord(plan.name, child.pid, mark, started, int(plan.tier), plan.ports, plan.probe)
            self.save(self.record.with_process(process))
            return process

    def save(self, record: StackRecord) -> None:
        """Make `record` the stack's record."""
        self.record = record
        records.save(record, self.folder.record)

    def wait_until_serving(self, plans: Iterable[ProcessPlan], timeout_s: float, report: Report) -> None:
        """Wait for all. Raises StackError that names the one that ended or does not serve, with its log's end."""
        began = time.monotonic()
        pending = list(plans)
        while pending:
            for plan in list(pending):
                self._check_running()
                if answers(plan.probe):
                    pending.remove(plan)
                    report(f"{plan.name} serves after {time.monotonic() - began:.1f} s")
            if pending and time.monotonic() - began > timeout_s:
                name = pending[0].name
                raise StackError(f"{name} does not serve after {timeout_s:.0f} s\n{log_tail(self.folder.log(name))}")
            time.sleep(_POLL_S if pending else 0)

    def _check_running(self) -> None:
        for name, child in self._children.items():
            code = child.poll()
            if code is not None:
                raise StackError(f"{name} ended with {exit_words(code)}\n{log_tail(self.folder.log(name))}")


def stop(processes: Iterable[ProcessRecord], report: Report, grace_s: float = STOP_GRACE_S) -> None:
    """End processes tier by tier, the gateway first: SIGTERM, then SIGKILL after `grace_s`. Strangers are left."""
    listed = list(processes)
    for process in listed:
        if process.pid_reused:
            report(f"{process.name}: pid {process.pid} belongs to another program now, left alone")
    for tier in sorted({process.tier for process in listed}, reverse=True):
        running = [process for process in reversed(listed) if process.tier == tier and process.alive]
        for process in running:
            _signal(process, signal.SIGTERM)
        for process in _left_after(running, grace_s):
            report(f"{process.name} (pid {process.pid}) does not end by itself after {grace_s:.0f} s, killed")
            _signal(process, signal.SIGKILL)
        if left := _left_after(running, grace_s):
            raise StackError(f"{left[0].name} (pid {left[0].pid}) can't be ended; it may hang in the kernel")


def _left_after(processes: list[ProcessRecord], seconds: float) -> list[ProcessRecord]:
    deadline = time.monotonic() + seconds
    while (left := [process for process in processes if process.alive]) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return left


def _signal(process: ProcessRecord, number: signal.Signals) -> None:
    # Checked again right before: between this line and the signal a pid can't be given to another process
    # unless ours ends and its number comes round in that moment.
    if process.alive:
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)


def exit_words(code: int) -> str:
    """An exit status in words: negative means a signal ended the process."""
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"status {code}"


def log_tail(path: Path, lines: int = LOG_TAIL_LINES) -> str:
    """The last lines of a log, indented, under the log's path."""
    try:
        last = path.read_text(errors="replace").splitlines()[-lines:]
    except FileNotFoundError:
        last = []
    return "\n".join([f"  {path}:", *(f"    {line}" for line in last or ["(empty)"])])
