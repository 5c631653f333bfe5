"""`tokenpath down`: end the processes of this folder's stack and no others."""

from __future__ import annotations

from services.local import records
from services.local.folder import StackFolder
from services.local.lock import stack_lock
from services.local.supervisor import Report, stop


def take_down(folder: StackFolder, report: Report) -> bool:
    """End the stack of this folder. Returns whether there was one. Its data (keys, ledger) stays for the next start."""
    if not folder.path.is_dir():
        return False
    with stack_lock(folder.lock):
        record = records.load(folder.record)
        if record is None:
            return False
        stop(record.processes, report)
        folder.record.unlink()
        return True
