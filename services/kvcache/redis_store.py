"""Pages in Redis: they outlive their writer and every worker can read them.

Commands are written to the connection by hand: redis-py's own packing copies every payload, which
costs more than sending it.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from services.kvcache.envelope import HEADER_BYTES, Envelope, FaultReason, PageFault
from services.kvcache.metrics import StoreMetrics
from services.kvcache.names import PageName
from services.kvcache.page import Page
from services.kvcache.resp import Chunk, command, set_command
from services.kvcache.store import PutResult, StoreUnavailable
from services.platform.redis import PoolBusyError, connect, raw_connection

T = TypeVar("T")
KEY_PREFIX = b"tp:kv:"
_DAMAGED = {FaultReason.SHORT, FaultReason.MISMATCH, FaultReason.CORRUPT, FaultReason.WRONG_TOKENS}
_FIRST_GUESS_BYTES = 256 * 1024
_SMALL_BYTES = 32 * 1024
"""A digest of less than this takes no longer than handing it to a thread."""


class RedisPageStore:
    """A PageStore. A page lives under `tp:kv:<hex name>` and always has a time to live."""

    def __init__(
        self,
        url: str,
        fingerprint: str,
        *,
        registry: CollectorRegistry,
        max_connections: int = 8,
        timeout_s: float = 1.0,
        batch_bytes: int = 4 * 1024 * 1024,
    ) -> None:
        """timeout_s bounds each wait on Redis; batch_bytes is about what one round trip carries."""
        self._client = connect(url, max_connections=max_connections, timeout_s=timeout_s)
        self._envelope = Envelope(fingerprint)
        self._metrics = StoreMetrics(registry)
        self._batch_bytes = batch_bytes
        self._page_bytes = _FIRST_GUESS_BYTES
        # Digests of megabytes would hold up the event loop.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="kv-digest")

    async def put(self, pages: Sequence[Page], *, ttl_s: float) -> PutResult:
        """See PageStore.put. A page that is there already only has its time to live raised."""
        start = time.perf_counter_ns()
        ttl_ms = b"%d" % max(1, round(ttl_s * 1000))
        with self._counting_failures("put"):
            async with raw_connection(self._client) as connection:
                there = await _refresh(connection, pages, ttl_ms)
                absent = [page for page, found in zip(pages, there, strict=True) if not found]
                sent = 0
                for batch in self._batches(absent):
                    sent += await self._write(connection, batch, ttl_ms)
        result = PutResult(len(pages), len(absent), sent, time.perf_counter_ns() - start)
        self._metrics.put(result)
        return result

    async def get(self, wanted: Sequence[tuple[PageName, int]]) -> list[Page | PageFault]:
        """See PageStore.get. A damaged page is deleted, so that its next writer does not take it for good."""
        start = time.perf_counter_ns()
        results: list[Page | PageFault] = []
        try:
            with self._counting_failures("get"):
                async with raw_connection(self._client) as connection:
                    await self._read(connection, wanted, results)
        except StoreUnavailable:
            results += [PageFault(name, FaultReason.UNAVAILABLE) for name, _ in wanted[len(results) :]]
        damaged = [r.name for r in results if isinstance(r, PageFault) and r.reason in _DAMAGED]
        if damaged:
            await self._delete(damaged)
        self._metrics.get(results, time.perf_counter_ns() - start)
        return results

    async def close(self) -> None:
        """See PageStore.close."""
        await self._client.aclose()
        self._thread.shutdown(wait=False)

    async def _write(self, connection: AbstractConnection, batch: Sequence[Page], ttl_ms: bytes) -> int:
        size = sum(len(page.payload) for page in batch)
        headers = await self._digesting(size, lambda: [self._envelope.header(page) for page in batch])
        chunks: list[Chunk] = []
        for page, header in zip(batch, headers, strict=True):
            chunks += set_command(_key(page.name), header, page.payload, ttl_ms)
            self._page_bytes = max(self._page_bytes, HEADER_BYTES + len(page.payload))
        await _exchange(connection, chunks, len(batch))
        return sum(map(len, chunks))

    async def _read(
        self, connection: AbstractConnection, wanted: Sequence[tuple[PageName, int]], results: list[Page | PageFault]
    ) -> None:
        """Appends to results batch by batch; one batch is verified while the next one arrives."""
        verifying: Awaitable[list[Page | PageFault]] | None = None
        done = 0
        try:
            while done < len(wanted):
                batch = wanted[done : done + max(1, self._batch_bytes // self._page_bytes)]
                [values] = await _exchange(connection, [command(b"MGET", *(_key(name) for name, _ in batch))], 1)
                if verifying is not None:
                    results += await verifying
                size = sum(len(value or b"") for value in values)
                verifying = self._digesting(size, _opener(self._envelope, batch, values))
                self._page_bytes = max(self._page_bytes, *(len(value or b"") for value in values))
                done += len(batch)
        finally:
            # What had arrived before a failure counts.
            if verifying is not None:
                results += await verifying
        if any(isinstance(r, PageFault) and r.reason is FaultReason.MISMATCH for r in results):
            # Another page's value can mean that replies and requests got out of step.
            await connection.disconnect(nowait=True)

    async def _delete(self, names: Sequence[PageName]) -> None:
        try:
            await self._client.unlink(*(_key(name) for name in names))
        except RedisError:
            self._metrics.failure("delete", "connection")

    def _batches(self, pages: Sequence[Page]) -> Iterator[Sequence[Page]]:
        batch: list[Page] = []
        size = 0
        for page in pages:
            if batch and size + len(page.payload) > self._batch_bytes:
                yield batch
                batch, size = [], 0
            batch.append(page)
            size += len(page.payload)
        if batch:
            yield batch

    def _digesting(self, size: int, work: Callable[[], T]) -> Awaitable[T]:
        """Start `work`, which takes digests of `size` bytes; on a thread where that would hold up the event loop."""
        loop = asyncio.get_running_loop()
        if size > _SMALL_BYTES:
            return loop.run_in_executor(self._thread, work)
        done: asyncio.Future[T] = loop.create_future()
        done.set_result(work())
        return done

    @contextmanager
    def _counting_failures(self, operation: str) -> Iterator[None]:
        try:
            yield
        except (RedisError, OSError) as error:
            reason = _reason(error)
            self._metrics.failure(operation, reason)
            raise StoreUnavailable(reason, f"KV store: {operation} failed ({reason}): {error}") from error


def _opener(
    envelope: Envelope, batch: Sequence[tuple[PageName, int]], values: Sequence[bytes | None]
) -> Callable[[], list[Page | PageFault]]:
    return lambda: [envelope.open(*wanted, value) for wanted, value in zip(batch, values, strict=True)]


async def _refresh(connection: AbstractConnection, pages: Sequence[Page], ttl_ms: bytes) -> list[bool]:
    """Raises the time to live of those pages that are in Redis; says which are."""
    chunks: list[Chunk] = []
    for page in pages:
        key = _key(page.name)
        chunks += (command(b"PEXPIRE", key, ttl_ms, b"GT"), command(b"EXISTS", key))
    replies = await _exchange(connection, chunks, 2 * len(pages))
    return [found == 1 for found in replies[1::2]]


async def _exchange(connection: AbstractConnection, chunks: Sequence[Chunk], replies: int) -> list[Any]:
    """Sends whole commands and reads their replies. ResponseError: the first refusal, after all were read.

    One time limit for all: redis-py's own, a timer a reply, would cost more than the replies.
    """
    # Its annotation says bytes only; it hands the chunks to writelines(), which takes views too.
    await connection.send_packed_command(chunks)  # type: ignore[arg-type]
    answers: list[Any] = []
    refusal: ResponseError | None = None
    async with asyncio.timeout(connection.socket_timeout):
        for _ in range(replies):
            try:
                answers.append(await connection.read_response(disable_decoding=True, timeout=math.inf))
            except ResponseError as error:
                refusal = refusal or error
    if refusal is not None:
        raise refusal
    return answers


def _key(name: PageName) -> bytes:
    return KEY_PREFIX + name.hex().encode()


def _reason(error: Exception) -> str:
    if isinstance(error, PoolBusyError):
        return "busy"
    if isinstance(error, (RedisTimeoutError, TimeoutError)):
        return "timeout"
    return "refused" if isinstance(error, ResponseError) else "connection"
