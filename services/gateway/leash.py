"""Ends a request's work early, wherever it waits: the client left, its time is over, or this process ends."""

from __future__ import annotations

import asyncio
import time
from types import TracebackType

from starlette.types import Receive

from services.gateway.errors import ClientGone, deadline_exceeded
from services.platform.failures import Failure


class Leashes:
    """All requests being served, so that a shutdown can end them."""

    def __init__(self) -> None:
        self._open: set[Leash] = set()
        self._empty = asyncio.Event()
        self._empty.set()

    def add(self, leash: Leash) -> None:
        self._open.add(leash)
        self._empty.clear()

    def remove(self, leash: Leash) -> None:
        self._open.discard(leash)
        if not self._open:
            self._empty.set()

    async def drain(self, timeout_s: float, reason: Failure) -> None:
        """Let the requests end by themselves; after `timeout_s` end the rest with `reason`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._empty.wait()
        except TimeoutError:
            for leash in list(self._open):
                leash.pull(reason)


class Leash:
    """Around the work of the current task. A pull cancels the work; the block then raises the pull's reason."""

    def __init__(self, leashes: Leashes, deadline: float) -> None:
        """`deadline` is on the monotonic clock."""
        self.reason: Failure | None = None
        self._leashes = leashes
        self._deadline = deadline
        self._watcher: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Leash:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancelling = task.cancelling()
        delay = max(0.0, self._deadline - time.monotonic())
        self._timer = asyncio.get_running_loop().call_later(delay, lambda: self.pull(deadline_exceeded()))
        self._leashes.add(self)
        return self

    def watch(self, receive: Receive) -> None:
        """From now on (the body has been read) notice when the client leaves."""
        self._watcher = asyncio.create_task(self._until_gone(receive), name="client watch")

    async def _until_gone(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.pull(ClientGone())

    def pull(self, reason: Failure) -> None:
        """End the work; the first reason counts."""
        if self.reason is None:
            self.reason = reason
            self._task.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._timer.cancel()
        if self._watcher is not None:
            self._watcher.cancel()
        self._leashes.remove(self)
        if self.reason is None:
            return
        # As asyncio.timeout does it: somebody else's cancel of this task goes on as a cancel.
        if self._task.uncancel() <= self._cancelling and isinstance(error, asyncio.CancelledError):
            raise self.reason from None
