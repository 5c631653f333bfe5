"""A keep-alive HTTP connection that reads a token stream for next to nothing.

It looks for the few byte strings that matter and parses no JSON, because on a small machine the client's CPU time
is taken from the services that it measures.
"""

from __future__ import annotations

import asyncio
import re
import time
from typing import cast

from loadtest.hops.job import Sample

TEXT = b'"content":"'
EMPTY_TEXT = b'"content":""'
END = b"0\r\n\r\n"
_ID = re.compile(rb'"id":"([^"]+)"')
_COMPLETION_TOKENS = re.compile(rb'"completion_tokens":(\d+)')


class StreamFailed(Exception):
    """The answer was not a whole, successful stream."""


class StreamConnection(asyncio.Protocol):
    """One request at a time over one connection."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._rest = b""
        self._id = ""
        self._arrivals: list[tuple[int, int]] = []
        self._tokens = -1
        self._ended: asyncio.Future[int] | None = None

    async def stream(self, request: bytes, timeout_s: float) -> Sample:
        """Send `request` (a whole HTTP request) and read to the end. Raises StreamFailed or TimeoutError."""
        assert self._transport is not None, "used before it was connected"
        self._rest, self._id, self._arrivals, self._tokens = b"", "", [], -1
        self._ended = asyncio.get_running_loop().create_future()
        # Before the write: on a full machine the service that it wakes may push this process off the core.
        sent_ns = time.perf_counter_ns()
        self._transport.write(request)
        ended_ns = await asyncio.wait_for(self._ended, timeout_s)
        if self._tokens < 0 or not self._arrivals:
            raise StreamFailed("the stream ended without text or without usage")
        return Sample(self._id, sent_ns, ended_ns, self._arrivals, self._tokens)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own class is no subclass

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter_ns()
        if self._ended is None or self._ended.done():
            return  # a timed-out request's late bytes; the caller gives the connection up
        data = self._rest + data
        if not self._id:
            if b"\r\n\r\n" not in data:
                self._rest = data
                return
            if not data.startswith(b"HTTP/1.1 200"):
                self._fail(StreamFailed(data[:500].decode(errors="replace")))
                return
            if (found := _ID.search(data)) is None:
                self._rest = data  # the headers came alone
                return
            self._id = found.group(1).decode()
        whole = data.rfind(b"\n\n") + 2 if b"\n\n" in data else 0
        texts = data.count(TEXT, 0, whole) - data.count(EMPTY_TEXT, 0, whole)
        if texts:
            self._arrivals.append((now, texts))
        if whole and b'"error"' in data:
            self._fail(StreamFailed(data[:500].decode(errors="replace")))
            return
        if b'"completion_tokens"' in data and (found := _COMPLETION_TOKENS.search(data)):
            self._tokens = int(found.group(1))
        self._rest = data[whole:]
        if self._rest.endswith(END):
            self._ended.set_result(now)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(StreamFailed(f"the connection was closed before the stream's end: {exc}"))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _fail(self, error: Exception) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_exception(error)
