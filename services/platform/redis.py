"""Redis clients that neither wait without bound nor mix up replies when a caller is cancelled."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.connection import AbstractConnection, Connection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

HEALTH_CHECK_S = 30
# As much as asyncio's StreamReader holds by default. redis-py's own 32 KiB makes megabyte replies three
# times slower, because what remains in the reader is moved for each read.
_READ_BYTES = 64 * 1024


class PoolBusyError(RedisConnectionError):
    """No connection became free in time."""


class BoundedPool(ConnectionPool):
    """At most max_connections; a caller waits up to wait_s seconds for a free one, then PoolBusyError.

    redis-py's BlockingConnectionPool takes a lock to give a connection back, so a cancel that lands
    there loses the connection for good, and one that lands on a notified waiter loses the wake-up.
    Here giving back never awaits.
    """

    def __init__(self, *, wait_s: float = 1.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._wait_s = wait_s
        self._free = asyncio.Semaphore(self.max_connections)

    async def get_connection(self, command_name: object = None, *keys: object, **options: object) -> AbstractConnection:
        try:
            async with asyncio.timeout(self._wait_s):
                await self._free.acquire()
        except TimeoutError:
            raise PoolBusyError(
                f"all {self.max_connections} Redis connections stayed busy for {self._wait_s} s; "
                "send less at a time or raise max_connections"
            ) from None
        connection: AbstractConnection = self.get_available_connection()  # type: ignore[no-untyped-call]
        try:
            await self.ensure_connection(connection)
        except BaseException:
            self._give_back(connection)
            raise
        return connection

    async def release(self, connection: AbstractConnection) -> None:
        self._give_back(connection)

    def _give_back(self, connection: AbstractConnection) -> None:
        self._in_use_connections.remove(connection)
        self._available_connections.append(connection)
        self._free.release()


class _Connection(Connection):
    """Sends without asyncio.wait_for: until Python 3.12 that loses a cancel which comes as the sending ends."""

    async def send_packed_command(self, command: bytes | str | Iterable[bytes], check_health: bool = True) -> None:
        if not self.is_connected:
            await self.connect_check_health(check_health=False)
        if check_health:
            await self.check_health()  # type: ignore[no-untyped-call]
        chunks = (
            [command.encode()] if isinstance(command, str) else [command] if isinstance(command, bytes) else command
        )
        writer = self._writer
        if writer is None:
            raise RedisConnectionError("the connection was closed before it was used")
        try:
            async with asyncio.timeout(self.socket_timeout):
                writer.writelines(chunks)
                await writer.drain()
        except BaseException as error:
            # A command that was sent in part leaves the connection unusable.
            await self.disconnect(nowait=True)
            if isinstance(error, TimeoutError):
                raise RedisTimeoutError("Redis does not take what is sent to it") from None
            if isinstance(error, OSError):
                raise RedisConnectionError(f"sending to Redis failed: {error}") from error
            raise


def connect(url: str, *, max_connections: int = 32, timeout_s: float = 1.0) -> Redis:
    """A client of the Redis at `url` that connects on first use; end it with `await client.aclose()`.

    timeout_s bounds each of: waiting for a free connection, connecting, sending, receiving one reply.
    Put asyncio.timeout around a command that must end sooner than their sum. Nothing is tried twice:
    after a lost reply only the caller knows whether a second try is safe. A connection that the
    server closed while it lay idle is replaced before use.
    """
    pool = BoundedPool.from_url(
        url,
        max_connections=max_connections,
        connection_class=_Connection,
        wait_s=timeout_s,
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        socket_keepalive=True,
        socket_read_size=_READ_BYTES,
        health_check_interval=HEALTH_CHECK_S,
        retry=Retry(NoBackoff(), 0),
        # With protocol 3 redis-py turns maintenance notifications on and then no longer refuses a
        # pooled connection that holds an unread reply.
        protocol=2,
    )
    return Redis.from_pool(pool)


@asynccontextmanager
async def raw_connection(client: Redis) -> AsyncIterator[AbstractConnection]:
    """A pooled connection for pipelining by hand; closed, not reused, if the body does not end well.

    The body must have read one reply for each command it sent when it ends normally.
    """
    pool = client.connection_pool
    connection = await pool.get_connection()  # type: ignore[no-untyped-call]
    try:
        yield connection
    except BaseException:
        await connection.disconnect(nowait=True)
        raise
    finally:
        await pool.release(connection)
