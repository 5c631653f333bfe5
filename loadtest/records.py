"""One JSON line a request: what the summary is made from, and what anyone can analyse again."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from loadtest.measure import Measurement


@dataclass(frozen=True)
class Record:
    """One request of a run. No prompt and no text, so a record can be shared."""

    sent_s: float  # since the run began
    dispatch_lag_s: float  # how late the user woke up to send it
    measurement: Measurement


class RecordWriter:
    """Appends records to a file, a line each; one process, one writer."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[str] = path.open("w", buffering=1)

    def write(self, record: Record) -> None:
        self._file.write(json.dumps(asdict(record)) + "\n")

    def close(self) -> None:
        self._file.close()


def read_records(lines: Iterable[str]) -> list[Record]:
    """The records of a file's lines."""
    records = []
    for line in lines:
        row = json.loads(line)
        row["measurement"]["itl_s"] = tuple(row["measurement"]["itl_s"])
        records.append(Record(row["sent_s"], row["dispatch_lag_s"], Measurement(**row["measurement"])))
    return records
