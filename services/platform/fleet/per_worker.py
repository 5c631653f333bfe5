"""One task for each living worker, and a way to follow a stream of it for ever."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import grpc

from services.platform.fleet.record import WorkerRecord
from services.platform.fleet.watcher import ChangeKind, FleetChange
from services.platform.tasks import TaskOwner

M = TypeVar("M")

_FIRST_DELAY_S = 0.1
_LONGEST_DELAY_S = 2.0


class PerWorker:
    """A fleet listener that runs `serve(worker)` from the start to the end of each life of each worker.

    A new life's task starts when the old life's has ended, so that a late clean-up can't touch the new one.
    """

    def __init__(self, serve: Callable[[WorkerRecord], Coroutine[Any, Any, None]], tasks: TaskOwner, name: str) -> None:
        self._serve = serve
        self._tasks = tasks
        self._name = name
        self._latest: dict[str, asyncio.Task[None]] = {}

    def __call__(self, change: FleetChange) -> None:
        worker = change.worker
        before = self._latest.get(worker.worker_id)
        if before is not None:
            before.cancel()
        if change.kind is not ChangeKind.REMOVED:
            task = self._tasks.spawn(self._run(before, worker), name=f"{self._name} {worker.worker_id}")
            self._latest[worker.worker_id] = task
            task.add_done_callback(lambda ended: self._forget(worker.worker_id, ended))

    async def _run(self, before: asyncio.Task[None] | None, worker: WorkerRecord) -> None:
        if before is not None:
            await asyncio.wait([before])
        await self._serve(worker)

    def _forget(self, worker_id: str, ended: asyncio.Task[None]) -> None:
        if self._latest.get(worker_id) is ended:
            del self._latest[worker_id]


class StreamUnusable(Exception):
    """Raised by a message handler: this stream can't be followed further, open a new one."""


async def follow(
    open_stream: Callable[[], Coroutine[Any, Any, grpc.aio.UnaryStreamCall[Any, M]]],
    on_message: Callable[[M], None],
    on_lost: Callable[[str], None],
) -> None:
    """Reads streams one after the other until cancelled; `on_lost(reason)` when one has ended, however.

    A stream that stays silent is legal; a dead peer is noticed by the channel's keepalive. Waits 0.1 to 2 s
    (with jitter) before the next try, longer each time nothing came.
    """
    delay = _FIRST_DELAY_S
    while True:
        call = None
        try:
            call = await open_stream()
            async for message in call:
                on_message(message)
                delay = _FIRST_DELAY_S
            reason = "ended"
        except grpc.aio.AioRpcError as error:
            reason = error.code().name
        except StreamUnusable as error:
            reason = str(error)
        finally:
            if call is not None:
                call.cancel()
        on_lost(reason)
        await asyncio.sleep(delay * random.uniform(0.5, 1.0))
        delay = min(delay * 2, _LONGEST_DELAY_S)
