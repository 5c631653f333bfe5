"""`stack.json`: which processes a stack consists of, so that `down` ends exactly those."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from services.local.errors import StackError
from services.local.processes import start_mark

VERSION = 1


@dataclass(frozen=True)
class ProcessRecord:
    """One started process. `mark` (see `processes.start_mark`) keeps a reused pid from being mistaken for it."""

    name: str
    pid: int
    mark: str
    started_unix: float
    tier: int
    ports: dict[str, int]
    probe: str

    @property
    def alive(self) -> bool:
        return start_mark(self.pid) == self.mark

    @property
    def pid_reused(self) -> bool:
        """Whether the pid belongs to another process now."""
        return start_mark(self.pid) not in (None, self.mark)


@dataclass(frozen=True)
class StackRecord:
    """A stack as it was started. `ready` is set last, so a record without it is a half-started stack."""

    urls: dict[str, str]
    config: dict[str, str | int]
    processes: tuple[ProcessRecord, ...] = ()
    api_key: str = ""
    ready: bool = False
    created_unix: float = field(default_factory=time.time)
    version: int = VERSION

    def with_process(self, process: ProcessRecord) -> StackRecord:
        kept = tuple(other for other in self.processes if other.name != process.name)
        return replace(self, processes=(*kept, process))

    def process(self, name: str) -> ProcessRecord:
        for process in self.processes:
            if process.name == name:
                return process
        raise StackError(f"this stack has no {name}; it has {', '.join(process.name for process in self.processes)}")


def save(record: StackRecord, path: Path) -> None:
    """Write in one step, so that a reader never sees half a file. Only the owner may read it: it holds the API key."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.new")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(asdict(record), file, indent=1)
    os.replace(beside, path)


def load(path: Path) -> StackRecord | None:
    """The record, or None when there is no stack. Raises StackError when the file is not one of ours."""
    try:
        content = json.loads(path.read_text())
        if content["version"] != VERSION:
            raise ValueError(f"version {content['version']}")
        processes = tuple(ProcessRecord(**process) for process in content.pop("processes"))
        return StackRecord(processes=processes, **content)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise StackError(f"{path} can't be read ({error}); end its processes by hand and remove the file") from error
