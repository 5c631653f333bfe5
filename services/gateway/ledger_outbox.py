"""Every request that was admitted ends in one ledger row. Auth may be slow or gone: the row then waits here."""

from __future__ import annotations

import asyncio
import logging
import random

import grpc

from services.gateway.clients.auth import AuthClient
from services.gateway.leg import Leg
from services.gateway.metrics import GatewayMetrics
from services.platform.failures import Failure
from services.platform.tasks import TaskOwner
from tokenpath.v1.auth_pb2 import Receipt, SettleRequest

log = logging.getLogger(__name__)

_FIRST_RETRY_S = 0.1
_LAST_RETRY_S = 5.0
_FINAL = {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED}  # sending the same again can't help


class LedgerOutbox:
    """Delivers rows in tasks of its own, so a client that leaves can't take its bill along.

    Repeats are safe: auth writes one row per request id.
    """

    def __init__(
        self, auth: AuthClient, metrics: GatewayMetrics, tasks: TaskOwner, *, wait_s: float, capacity: int
    ) -> None:
        self._auth = auth
        self._metrics = metrics
        self._tasks = tasks
        self._wait_s = wait_s
        self._capacity = capacity
        self._waiting: set[asyncio.Task[Receipt | None]] = set()

    async def settle(self, leg: Leg, row: SettleRequest) -> Receipt | None:
        """Write `row`; None when auth has not confirmed it in time (it is then tried on in the background).

        Safe to cancel: the row is delivered all the same.
        """
        if len(self._waiting) >= self._capacity:
            self._give_up(row, "outbox_full")
            return None
        task = self._tasks.spawn(self._deliver(leg, row), name=f"settle {row.request_id}")
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)
        done, _ = await asyncio.wait({task}, timeout=self._wait_s)
        return task.result() if done else None

    async def flush(self, timeout_s: float) -> None:
        """Wait until all rows are delivered, for at most `timeout_s`; what is left is logged and counted."""
        if self._waiting:
            await asyncio.wait(set(self._waiting), timeout=timeout_s)

    async def _deliver(self, leg: Leg, row: SettleRequest) -> Receipt | None:
        delay = _FIRST_RETRY_S
        self._metrics.outbox_rows.inc()
        try:
            while True:
                try:
                    return await self._auth.settle(leg.without_deadline(), row)
                except Failure as failure:
                    if failure.status in _FINAL:
                        self._give_up(row, failure.status.name.lower())
                        return None
                    leg = leg.off_the_record()
                self._metrics.settle_retries.inc()
                await asyncio.sleep(delay * random.uniform(0.5, 1.0))
                delay = min(2 * delay, _LAST_RETRY_S)
        except asyncio.CancelledError:
            self._give_up(row, "shutdown")
            raise
        finally:
            self._metrics.outbox_rows.dec()

    def _give_up(self, row: SettleRequest, reason: str) -> None:
        """The log line is the last copy of the row: it holds what is needed to book it by hand."""
        self._metrics.settle_lost.labels(reason).inc()
        log.error(
            "ledger row lost (%s): request=%s key=%s tenant=%s prompt=%d cached=%d completion=%d outcome=%d",
            reason,
            row.request_id,
            row.key_id,
            row.tenant,
            row.usage.prompt_tokens,
            row.usage.cached_tokens,
            row.usage.completion_tokens,
            row.outcome,
        )
