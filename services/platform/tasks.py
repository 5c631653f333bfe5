"""Background tasks with an owner that ends them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

log = logging.getLogger(__name__)


class TaskOwner:
    """Starts tasks, logs those that fail, cancels and awaits the rest on `close`."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, coroutine: Coroutine[Any, Any, Any], *, name: str) -> asyncio.Task[Any]:
        """Run `coroutine` until it ends or this owner closes."""
        task = asyncio.create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("background task %s failed: %s", task.get_name(), type(error).__name__, exc_info=error)

    async def close(self) -> None:
        """Cancel every task and wait until it has ended.

        Asks again every half second: a library may lose a cancellation, as `asyncio.wait_for` does until Python 3.12
        when its work ends just then.
        """
        while tasks := list(self._tasks):
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=0.5)
