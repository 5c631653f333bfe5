"""A TCP proxy in front of a server: it holds back what the server says for a while, and can lose an answer."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass
class LatencyProxy:
    """lose_reply_to: what a client must say for its connection to break, once, when the answer is there."""

    target_port: int
    delay_s: float
    port: int = 0
    lose_reply_to: bytes = b""
    connections: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def redis_url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.connections.add(task)
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self.target_port)
        connection = _Connection(self, up_reader, writer)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(connection.forward(reader, up_writer))
                group.create_task(connection.receive())
                group.create_task(connection.deliver())
        except* OSError:
            pass
        finally:
            writer.close()
            up_writer.close()
            self.connections.discard(task)


@asynccontextmanager
async def latency_proxy(target_port: int, delay_s: float) -> AsyncIterator[LatencyProxy]:
    """A proxy on loopback whose replies arrive delay_s seconds late, in order."""
    proxy = LatencyProxy(target_port, delay_s)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        for task in list(proxy.connections):
            task.cancel()
        await asyncio.gather(*proxy.connections, return_exceptions=True)


class _Connection:
    def __init__(self, proxy: LatencyProxy, up_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._up_reader = up_reader
        self._writer = writer
        self._late: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        self._doomed = False

    async def forward(self, reader: asyncio.StreamReader, up_writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(1 << 16):
            if self._proxy.lose_reply_to and self._proxy.lose_reply_to in chunk:
                self._proxy.lose_reply_to = b""
                self._doomed = True
            up_writer.write(chunk)
            await up_writer.drain()
        raise ConnectionResetError("the client left")

    async def receive(self) -> None:
        while chunk := await self._up_reader.read(1 << 16):
            if self._doomed:
                raise ConnectionResetError("this answer was to be lost")
            self._late.put_nowait((asyncio.get_running_loop().time() + self._proxy.delay_s, chunk))
        raise ConnectionResetError("the server left")

    async def deliver(self) -> None:
        while True:
            due, chunk = await self._late.get()
            await asyncio.sleep(due - asyncio.get_running_loop().time())
            self._writer.write(chunk)
            await self._writer.drain()
