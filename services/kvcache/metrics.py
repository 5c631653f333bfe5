"""Counts of what goes into and comes out of the page store."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram

from services.kvcache.envelope import PageFault
from services.kvcache.page import Page
from services.kvcache.store import PutResult

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class StoreMetrics:
    """One store's metrics; at most one per registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._pages = Counter(
            "tokenpath_kv_store_pages",
            "Pages by outcome: written, refreshed (was there already), read, or why it could not be read",
            ("outcome",),
            registry=registry,
        )
        self._bytes = Counter(
            "tokenpath_kv_store_bytes", "Bytes of pages sent (put) and read (get)", ("operation",), registry=registry
        )
        self._seconds = Histogram(
            "tokenpath_kv_store_seconds", "Duration", ("operation",), registry=registry, buckets=_SECONDS
        )
        self._failures = Counter(
            "tokenpath_kv_store_failures",
            "Operations that the store did not carry out whole",
            ("operation", "reason"),
            registry=registry,
        )

    def put(self, result: PutResult) -> None:
        self._pages.labels("written").inc(result.written)
        self._pages.labels("refreshed").inc(result.pages - result.written)
        self._bytes.labels("put").inc(result.bytes)
        self._seconds.labels("put").observe(result.duration_ns / 1e9)

    def get(self, results: Iterable[Page | PageFault], duration_ns: int) -> None:
        for result in results:
            if isinstance(result, Page):
                self._pages.labels("read").inc()
                self._bytes.labels("get").inc(len(result.payload))
            else:
                self._pages.labels(result.reason.value).inc()
        self._seconds.labels("get").observe(duration_ns / 1e9)

    def failure(self, operation: str, reason: str) -> None:
        self._failures.labels(operation, reason).inc()
