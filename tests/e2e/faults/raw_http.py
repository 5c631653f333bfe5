"""HTTP by hand, for clients that leave in the middle of something."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tests.e2e.api import PATHS, Json
from tests.stack import RunningStack

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER on, 0 seconds


@dataclass
class Connection:
    """One TCP connection to the gateway."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def read_until(self, mark: bytes, limit_s: float = 20.0) -> bytes:
        """Everything up to the mark. Raises asyncio.IncompleteReadError when the gateway closes before it."""
        async with asyncio.timeout(limit_s):
            return await self.reader.readuntil(mark)

    def reset(self) -> None:
        """Close with RST instead of FIN."""
        raw: socket.socket = self.writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self.writer.transport.abort()


@asynccontextmanager
async def connected(stack: RunningStack) -> AsyncIterator[Connection]:
    """A connection that is closed in the end unless it was before."""
    reader, writer = await asyncio.open_connection("127.0.0.1", stack.process("gateway").ports["http"])
    try:
        yield Connection(reader, writer)
    finally:
        writer.close()


def request_bytes(stack: RunningStack, body: Json, headers: Mapping[str, str] | None = None) -> bytes:
    """A whole POST request to the chat endpoint."""
    content = json.dumps(body).encode()
    lines = {
        "host": "tokenpath",
        "authorization": f"Bearer {stack.api_key}",
        "content-type": "application/json",
        "content-length": str(len(content)),
        **(headers or {}),
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"POST {PATHS['chat']} HTTP/1.1\r\n{head}\r\n".encode() + content
