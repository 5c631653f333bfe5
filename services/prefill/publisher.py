"""Brings a prompt's pages to the store while later chunks of it are still computed."""

from __future__ import annotations

import asyncio
import logging
from types import TracebackType

from prometheus_client import CollectorRegistry, Counter

from services.kvcache.page import Page
from services.kvcache.store import PageStore, StoreUnavailable

log = logging.getLogger(__name__)


class PublishMetrics:
    """Prompts whose pages did not all reach the store, so that a decode worker must recompute."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._failures = Counter(
            "tokenpath_kv_publish_failures",
            "Prompts handed over without pages, by reason",
            ["reason"],
            registry=registry,
        )

    def failed(self, reason: str) -> None:
        self._failures.labels(reason).inc()


class Publisher:
    """One prompt's pages. Use as a context manager; leaving it drops what is not stored yet."""

    def __init__(self, store: PageStore | None, ttl_s: float, metrics: PublishMetrics) -> None:
        self._store = store
        self._ttl_s = ttl_s
        self._metrics = metrics
        self._waiting: list[Page] = []
        self._wake = asyncio.Event()
        self._complete = False
        self._task: asyncio.Task[str] | None = None
        self.pages = 0
        """In the store."""
        self.bytes = 0
        """Sent to it; pages that were there already cost none."""

    def add(self, page: Page) -> None:
        """The prompt's next page."""
        self._waiting.append(page)
        self._wake.set()

    async def finish(self, timeout_s: float) -> bool:
        """Wait until all pages are stored; False (and counted) when they aren't within `timeout_s` seconds."""
        self._complete = True
        self._wake.set()
        assert self._task is not None, "use the publisher as a context manager"
        try:
            async with asyncio.timeout(timeout_s):
                reason = await self._task
        except TimeoutError:
            reason = "timeout"
        if reason:
            self._metrics.failed(reason)
        return not reason

    async def __aenter__(self) -> Publisher:
        self._task = asyncio.create_task(self._run(), name="publish pages")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> str:
        """Why the pages are not in the store, or ""."""
        if self._store is None:
            return "no_store"
        while True:
            await self._wake.wait()
            self._wake.clear()
            pages, self._waiting = self._waiting, []
            if pages:
                try:
                    result = await self._store.put(pages, ttl_s=self._ttl_s)
                except StoreUnavailable as error:
                    log.warning("%s", error)
                    return error.reason
                self.pages += result.pages
                self.bytes += result.bytes
            if self._complete and not self._waiting:
                return ""
