"""Calls to the state Redis with one deadline over everything, and one second try where that is safe."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import grpc
from prometheus_client import CollectorRegistry, Counter
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from services.platform.failures import Failure
from services.platform.redis import PoolBusyError

T = TypeVar("T")
DEADLINE_S = 1.0
RETRY_AFTER_MS = 1000


class UntrustedReplyError(Exception):
    """Redis answered, but about something else or with something that can't be read."""


class State:
    """Runs operations that are safe to repeat."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._retries = Counter(
            "tokenpath_auth_redis_retries", "Second tries after a lost connection", registry=registry
        )
        self._unavailable = Counter(
            "tokenpath_auth_redis_unavailable", "Calls that Redis did not answer well", ["kind"], registry=registry
        )

    async def ask(self, operation: Callable[[], Awaitable[T]], *, advice: str) -> T:
        """The operation's result within DEADLINE_S, or Failure(UNAVAILABLE) that ends with `advice`.

        A connection that broke is tried once more at once: after a restart of Redis every pooled
        connection is dead until it is used.
        """
        try:
            async with asyncio.timeout(DEADLINE_S):
                try:
                    return await operation()
                except PoolBusyError:
                    raise
                except RedisConnectionError:
                    self._retries.inc()
                    return await operation()
        except (RedisError, OSError, UntrustedReplyError) as error:
            self._unavailable.labels(type(error).__name__).inc()
            raise Failure(
                grpc.StatusCode.UNAVAILABLE,
                f"the store of keys and ledger can't be used now; {advice}",
                code="service_unavailable",
                retry_after_ms=RETRY_AFTER_MS,
            ) from error
