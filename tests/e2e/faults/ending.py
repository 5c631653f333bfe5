"""How a process of a stack ends."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from dataclasses import dataclass

from tests.stack import RunningStack


@dataclass(frozen=True)
class Ending:
    name: str
    exit_status: int  # negative: by a signal
    seconds: float


async def terminated(stack: RunningStack, *names: str) -> list[Ending]:
    """Send SIGTERM to all of these at once, and wait until they have ended."""
    return await asyncio.gather(*(asyncio.to_thread(_terminate, stack, name) for name in names))


def _terminate(stack: RunningStack, name: str) -> Ending:
    began = time.monotonic()
    stack.kill(name, signal.SIGTERM)
    _, status = os.waitpid(stack.process(name).pid, 0)  # a stack of a test is made of its children
    return Ending(name, os.waitstatus_to_exitcode(status), time.monotonic() - began)
