"""uvicorn's HTTP/1.1 with the bounds that it lacks: how long a request's head may be, and how long it may take."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from services.gateway.errors import ApiError, error_body

HEAD_BYTES = 64 * 1024
"""Longest request line and headers, as far as they have come without their end."""
HEAD_S = 30.0
"""A connection whose request's head is not complete after this long is closed."""


class BoundedProtocol(HttpToolsProtocol):
    """One connection. A head above HEAD_BYTES is a 431; both bounds end the connection."""

    _head_bytes = 0
    _past_head = False  # the data at hand held more than a piece of one head
    _in_body = False
    _running: RequestResponseCycle | None = None
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        # uvicorn tells only the newest request of a pipeline; the one being answered would go on for nobody.
        self.pipeline.clear()
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._past_head = False
        super().data_received(data)
        if self._past_head or self._in_body:
            self._head_bytes = 0
            self._stop_waiting()
            return
        self._head_bytes += len(data)
        if self._head_bytes > HEAD_BYTES:
            self._refuse(431, f"the request's head is longer than {HEAD_BYTES} bytes")
        elif self._head_timer is None:
            self._await_head()

    def on_headers_complete(self) -> None:
        self._past_head = self._in_body = True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._past_head, self._in_body = True, False
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "this is not valid HTTP/1.1")

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGIApp) -> None:  # type: ignore[override]
        self._running = cycle
        super()._start_asgi_task(cycle, app)  # type: ignore[arg-type]

    def _refuse(self, status: int, message: str) -> None:
        """Answer what has no request yet, and close."""
        if self.transport.is_closing():
            return
        body = error_body(ApiError(status, message))
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[status] + head + body)
        self.transport.close()

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_S, self._give_up)

    def _stop_waiting(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _give_up(self) -> None:
        """Close, unless an earlier request on this connection is still being answered."""
        self._head_timer = None
        if self._running is not None and not self._running.response_complete:
            self._await_head()
        elif not self.transport.is_closing():
            self.transport.close()
