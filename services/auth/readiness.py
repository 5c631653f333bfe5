"""Health says SERVING exactly while the state Redis answers."""

from __future__ import annotations

import asyncio
import logging

from redis.asyncio import Redis
from redis.exceptions import RedisError

from services.auth.settings import AuthSettings
from services.auth.state import DEADLINE_S
from services.platform.server import Runtime

log = logging.getLogger(__name__)
_INTERVAL_S = 1.0


async def watch_redis(redis: Redis, runtime: Runtime[AuthSettings]) -> None:
    """Runs until cancelled. One line a change in the log, not one a failed request."""
    ready = True
    while not runtime.stopping.is_set():
        answers = await _answers(redis)
        if answers != ready:
            ready = answers
            await runtime.health.set_serving(ready and not runtime.stopping.is_set())
            log.warning("the state Redis %s", "answers again" if ready else "does not answer: not ready")
        await asyncio.sleep(_INTERVAL_S)


async def _answers(redis: Redis) -> bool:
    try:
        async with asyncio.timeout(DEADLINE_S):
            await redis.ping()
    except (RedisError, OSError):
        return False
    return True
