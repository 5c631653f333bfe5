"""A TCP proxy that holds back everything the server says for a while, in order."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


@asynccontextmanager
async def latency_proxy(target_port: int, delay_s: float) -> AsyncIterator[int]:
    """The loopback port of a proxy to target_port whose replies arrive delay_s seconds late."""
    handlers: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        handlers.add(task)
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", target_port)
        try:
            async with asyncio.TaskGroup() as group:
                late: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
                group.create_task(_forward(reader, up_writer))
                group.create_task(_receive(up_reader, late, delay_s))
                group.create_task(_deliver(late, writer))
        except* OSError:
            pass
        finally:
            writer.close()
            up_writer.close()
            handlers.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in list(handlers):
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*handlers, return_exceptions=True)


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(1 << 16):
        writer.write(chunk)
        await writer.drain()
    raise ConnectionResetError("the client left")


async def _receive(reader: asyncio.StreamReader, late: asyncio.Queue[tuple[float, bytes]], delay_s: float) -> None:
    while chunk := await reader.read(1 << 16):
        late.put_nowait((asyncio.get_running_loop().time() + delay_s, chunk))
    raise ConnectionResetError("the server left")


async def _deliver(late: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
    while True:
        due, chunk = await late.get()
        await asyncio.sleep(due - asyncio.get_running_loop().time())
        writer.write(chunk)
        await writer.drain()
