"""Keeps one worker's lease alive, whatever the store does."""

from __future__ import annotations

import asyncio
import logging
from types import TracebackType

from prometheus_client import CollectorRegistry, Counter
from redis.asyncio import Redis
from redis.exceptions import RedisError

from services.platform.fleet.record import INDEX_KEY, WorkerRecord
from services.platform.tasks import TaskOwner

log = logging.getLogger(__name__)

# The first write of a life takes the lease from whoever has it: the process that started last is the one
# that was meant. After that a life only renews its own lease or takes a free one, so that of two living
# processes with one name the older goes silent instead of the two taking turns.
_PUBLISH = """
local now = redis.call('TIME')
now = now[1] * 1000 + math.floor(now[2] / 1000)
if ARGV[4] == '0' then
  local held = redis.call('GET', KEYS[1])
  if held then
    local ok, lease = pcall(cjson.decode, held)
    if ok and lease.generation ~= ARGV[1] then return 0 end
  end
end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
redis.call('ZADD', KEYS[2], now + ARGV[3], KEYS[1])
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
return 1
"""

_WITHDRAW = """
local held = redis.call('GET', KEYS[1])
if not held then return 0 end
local ok, lease = pcall(cjson.decode, held)
if ok and lease.generation ~= ARGV[1] then return 0 end
redis.call('ZREM', KEYS[2], KEYS[1])
return redis.call('DEL', KEYS[1])
"""

_CALL_LIMIT_S = 2.0


class FleetPublisher:
    """Publishes `record` as a lease of `ttl_s`, renewed every `every_s`, from `start` to `stop`.

    Never raises for the store's sake: a renewal that fails is counted and tried again. `stop` takes the
    lease back at once if it is still this life's; call it before draining, so that no new work arrives.
    """

    def __init__(
        self,
        redis: Redis,
        record: WorkerRecord,
        ttl_s: float = 6.0,
        every_s: float = 2.0,
        *,
        registry: CollectorRegistry | None = None,
    ) -> None:
        self.record = record
        self.superseded = False  # a younger process with the same worker_id holds the lease
        self._redis = redis
        self._ttl_ms = int(ttl_s * 1000)
        self._every_s = every_s
        self._claimed = False
        self._tasks: TaskOwner | None = None
        self._failures = Counter(
            "tokenpath_fleet_publish_failures_total", "Lease renewals that the store did not answer", registry=registry
        )

    async def start(self) -> None:
        """Publishes once (or fails to, silently) and goes on in the background."""
        if self._tasks is None:
            self._tasks = TaskOwner()
            await self._publish()
            self._tasks.spawn(self._renew(), name=f"lease {self.record.worker_id}")

    async def stop(self) -> None:
        """Ends the renewals and removes the lease; safe to call twice."""
        tasks, self._tasks = self._tasks, None
        if tasks is None:
            return
        await tasks.close()
        try:
            async with asyncio.timeout(_CALL_LIMIT_S):
                await self._redis.eval(_WITHDRAW, 2, self.record.lease_key, INDEX_KEY, self.record.generation)
        except (RedisError, OSError, TimeoutError) as error:
            self._failures.inc()
            log.warning("lease of %s not removed, it ends by itself: %s", self.record.worker_id, error)

    async def __aenter__(self) -> FleetPublisher:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            await self._publish()

    async def _publish(self) -> None:
        record = self.record
        try:
            async with asyncio.timeout(_CALL_LIMIT_S):
                ours = await self._redis.eval(
                    _PUBLISH,
                    2,
                    record.lease_key,
                    INDEX_KEY,
                    record.generation,
                    record.to_json(),
                    self._ttl_ms,
                    0 if self._claimed else 1,
                )
        except (RedisError, OSError, TimeoutError) as error:
            self._failures.inc()
            log.warning("lease of %s not renewed, will try again in %.1f s: %s", record.worker_id, self._every_s, error)
            return
        self._claimed = True
        if self.superseded != (not ours):
            self.superseded = not ours
            if self.superseded:
                log.error(
                    "another process took the name %s: this life (%s) gets no more work; give one of them another name",
                    record.worker_id,
                    record.generation,
                )
            else:
                log.info("%s has its lease back (%s)", record.worker_id, record.generation)
