"""A view of the fleet that is never later than half a second and outlives the store."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType, TracebackType

from prometheus_client import CollectorRegistry, Counter, Gauge
from redis.asyncio import Redis
from redis.exceptions import RedisError

from services.platform.fleet.record import INDEX_KEY, WorkerRecord
from services.platform.tasks import TaskOwner

log = logging.getLogger(__name__)

_CALL_LIMIT_S = 2.0


class ChangeKind(StrEnum):
    ADDED = "added"
    REMOVED = "removed"
    RESTARTED = "restarted"  # the same worker_id in a new life


@dataclass(frozen=True, slots=True)
class FleetChange:
    kind: ChangeKind
    worker: WorkerRecord  # for REMOVED: as it was


class FleetWatcher:
    """Polls the leases and tells what changed.

    When the store doesn't answer, the last known view stays and `stale` is true. Leases end during an
    outage although their owners live, so for `settle_s` after it nobody is removed: the owners renew
    within that time.
    """

    def __init__(
        self,
        redis: Redis,
        every_s: float = 0.5,
        *,
        settle_s: float = 5.0,
        registry: CollectorRegistry | None = None,
    ) -> None:
        self.workers: Mapping[str, WorkerRecord] = MappingProxyType({})
        self.stale = True  # until the first answer
        self._redis = redis
        self._every_s = every_s
        self._settle_s = settle_s
        self._settled_at = 0.0  # monotonic; no removals before it
        self._listeners: list[Callable[[FleetChange], None]] = []
        self._tasks: TaskOwner | None = None
        self._failures = Counter(
            "tokenpath_fleet_poll_failures_total", "Polls of the fleet that the store did not answer", registry=registry
        )
        self._malformed = Counter("tokenpath_fleet_malformed_total", "Leases that could not be read", registry=registry)
        self._count = Gauge("tokenpath_fleet_workers", "Live workers by role", ["role"], registry=registry)
        stale = Gauge("tokenpath_fleet_stale", "1 while the fleet's view is the last known one", registry=registry)
        stale.set_function(lambda: float(self.stale))

    def on_change(self, listener: Callable[[FleetChange], None]) -> None:
        """Calls `listener` for every change from now on, and at once for each worker there is. It must not block."""
        self._listeners.append(listener)
        for worker in self.workers.values():
            listener(FleetChange(ChangeKind.ADDED, worker))

    async def start(self) -> None:
        """Polls once and goes on in the background."""
        if self._tasks is None:
            self._tasks = TaskOwner()
            await self._poll()
            self._tasks.spawn(self._watch(), name="fleet watcher")

    async def stop(self) -> None:
        tasks, self._tasks = self._tasks, None
        if tasks is not None:
            await tasks.close()

    async def __aenter__(self) -> FleetWatcher:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            await self._poll()

    async def _poll(self) -> None:
        try:
            async with asyncio.timeout(_CALL_LIMIT_S):
                found = await self._read()
        except (RedisError, OSError, TimeoutError) as error:
            self._failures.inc()
            if not self.stale:
                log.warning("the fleet's store does not answer, keeping the last view: %s", error)
            self.stale = True
            return
        if self.stale:
            self.stale = False
            if self.workers:
                self._settled_at = time.monotonic() + self._settle_s
        self._apply(found)

    async def _read(self) -> dict[str, WorkerRecord]:
        keys: list[str | bytes] = await self._redis.zrange(INDEX_KEY, 0, -1)  # type: ignore[assignment]
        if not keys:
            return {}
        found: dict[str, WorkerRecord] = {}
        for key, lease in zip(keys, await self._redis.mget(keys), strict=True):
            if lease is None:
                continue
            try:
                worker = WorkerRecord.from_json(lease)
            except ValueError as error:
                self._malformed.inc()
                log.warning("lease %r skipped: %s", key, error)
                continue
            found[worker.worker_id] = worker
        return found

    def _apply(self, found: dict[str, WorkerRecord]) -> None:
        before = self.workers
        gone = [worker for name, worker in before.items() if name not in found]
        if gone and time.monotonic() < self._settled_at:
            found |= {worker.worker_id: worker for worker in gone}
            gone = []
        changes = [FleetChange(ChangeKind.REMOVED, worker) for worker in gone]
        for name, worker in found.items():
            if name not in before:
                changes.append(FleetChange(ChangeKind.ADDED, worker))
            elif before[name] != worker:
                changes.append(FleetChange(ChangeKind.RESTARTED, worker))
        if not changes:
            return
        self.workers = MappingProxyType(found)
        for role in {worker.role for worker in (*before.values(), *found.values())}:
            self._count.labels(role).set(sum(worker.role == role for worker in found.values()))
        for change in changes:
            log.info(
                "worker %s %s (%s, generation %s)",
                change.worker.worker_id,
                change.kind,
                change.worker.role,
                change.worker.generation,
            )
            for listener in self._listeners:
                try:
                    listener(change)
                except Exception:
                    log.exception("a listener failed on %s of %s", change.kind, change.worker.worker_id)
