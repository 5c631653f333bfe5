"""Where a worker's pages go to and come from, as its settings say."""

from __future__ import annotations

from types import TracebackType

from prometheus_client import CollectorRegistry

from services.kvcache.redis_store import RedisPageStore
from services.kvcache.store import PageStore


class PageStores:
    """Opens the store once the fingerprint is known, closes it in the end. Use as a context manager."""

    def __init__(self, url: str, registry: CollectorRegistry) -> None:
        """`url` of the KV Redis; empty: there is no store."""
        self._url = url
        self._registry = registry
        self._store: PageStore | None = None

    def open(self, fingerprint: str) -> PageStore | None:
        if self._url:
            self._store = RedisPageStore(self._url, fingerprint, registry=self._registry)
        return self._store

    async def __aenter__(self) -> PageStores:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._store is not None:
            await self._store.close()
