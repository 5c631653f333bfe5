"""A TCP proxy that lets so many bytes through to the server and then holds everything back: a black hole with 0."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass
class ByteValve:
    """`budget` bytes still go to the server; None: no limit. `held` is set when something had to wait."""

    target_port: int
    budget: int | None
    port: int = 0
    held: asyncio.Event = field(default_factory=asyncio.Event)
    connections: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def redis_url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.connections.add(task)
        try:
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self.target_port)
            back = asyncio.create_task(_copy(up_reader, writer))
            try:
                await self._forward(reader, up_writer)
            finally:
                back.cancel()
                up_writer.close()
        except OSError:
            pass
        finally:
            writer.close()
            self.connections.discard(task)

    async def _forward(self, reader: asyncio.StreamReader, up_writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(1 << 16):
            if self.budget is not None:
                chunk, late = chunk[: self.budget], chunk[self.budget :]
                self.budget -= len(chunk)
                if late:
                    self.held.set()
            up_writer.write(chunk)
            await up_writer.drain()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(1 << 16):
        writer.write(chunk)
        await writer.drain()


@asynccontextmanager
async def byte_valve(target_port: int, budget: int | None = None) -> AsyncIterator[ByteValve]:
    """A valve on loopback."""
    valve = ByteValve(target_port, budget)
    server = await asyncio.start_server(valve.serve, "127.0.0.1", 0)
    valve.port = server.sockets[0].getsockname()[1]
    try:
        yield valve
    finally:
        server.close()
        for task in list(valve.connections):
            task.cancel()
        await asyncio.gather(*valve.connections, return_exceptions=True)
