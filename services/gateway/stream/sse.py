"""A streamed answer: nothing is sent before the first text, and then every event at once."""

from __future__ import annotations

import asyncio
import time

from prometheus_client import Gauge

from services.gateway.api.reply import Reply
from services.gateway.errors import error_body
from services.gateway.journey.recorder import Recorder
from services.gateway.stream.chunks import PING, ChunkEncoder, RunningUsage
from services.platform.failures import Failure
from tokenpath.v1.detokenizer_pb2 import StreamResponse

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class SseAnswer:
    """The sink of a streamed request. All events of one message leave in one write."""

    def __init__(
        self,
        reply: Reply,
        recorder: Recorder,
        encoder: ChunkEncoder,
        running_usage: RunningUsage,
        choices_per_prompt: int,
        ping_s: float,
        open_streams: Gauge,
    ) -> None:
        self._reply = reply
        self._recorder = recorder
        self._encoder = encoder
        self._running_usage = running_usage
        self._n = choices_per_prompt
        self._ping_s = ping_s
        self._open_streams = open_streams
        self._last_write = time.monotonic()
        self._pings: asyncio.Task[None] | None = None
        self._closed = False
        self._lock = asyncio.Lock()  # pings and the prompts of one request write side by side

    async def consume(self, prompt: int, message: StreamResponse) -> None:
        """Write the message's deltas as events."""
        if not message.deltas:
            return
        if self._pings is None:
            with self._recorder.own("respond", prompt):
                await self._write(self._encoder.encode(prompt * self._n, message.deltas, self._running_usage))
            self._recorder.content_sent(prompt)
        else:
            await self._write(self._encoder.encode(prompt * self._n, message.deltas, self._running_usage))

    async def finish(self, usage: bytes) -> None:
        """The usage chunk, when it was asked for, [DONE], and the end of the body."""
        self.close()
        await self._write(self._encoder.ending(usage), more=False)

    async def fail(self, failure: Failure) -> None:
        """An error status while that is still possible, else an error event and the end, without [DONE]."""
        self.close()
        if self._reply.status:
            await self._write(b"data: " + error_body(failure) + b"\n\n", more=False)
        else:
            await self._reply.refuse(failure)

    def close(self) -> None:
        """No more pings; the stream does not count as open any more. Later calls do nothing."""
        if self._pings is not None and not self._closed:
            self._closed = True
            self._pings.cancel()
            self._open_streams.dec()

    async def _write(self, events: bytes, *, more: bool = True) -> None:
        async with self._lock:
            if not self._reply.status:
                await self._reply.start(200, _HEADERS)
            if self._pings is None and more:
                self._open_streams.inc()
                self._pings = asyncio.create_task(self._ping(), name="sse pings")
            self._last_write = time.monotonic()
            await self._reply.write(events, more=more)

    async def _ping(self) -> None:
        """Comments keep proxies from closing a silent stream; clients skip them."""
        silence = 0.0
        while True:
            await asyncio.sleep(self._ping_s - silence)
            silence = time.monotonic() - self._last_write
            if silence >= self._ping_s:
                await self._write(PING)
                silence = 0.0
