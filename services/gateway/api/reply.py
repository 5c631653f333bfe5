"""One HTTP answer: headers that every answer has, and whether it has begun."""

from __future__ import annotations

import time

from starlette.types import Send

from services.gateway.api.arrival import Arrival
from services.gateway.errors import error_body, http_status, retry_headers
from services.platform.failures import Failure

Headers = list[tuple[bytes, bytes]]


class Reply:
    """Writes ASGI messages. `pod` is the decode worker that made the answer."""

    def __init__(self, send: Send, arrival: Arrival, trace_id: str) -> None:
        self._send = send
        self._arrival = arrival
        self._trace_id = trace_id
        self.pod = ""
        self.status = 0  # 0: not begun
        self.tried_twice = False  # a second worker was asked already

    async def start(self, status: int, headers: Headers) -> None:
        """Status line and headers."""
        self.status = status
        await self._send(
            {"type": "http.response.start", "status": status, "headers": [*self._common_headers(), *headers]}
        )

    async def write(self, body: bytes, *, more: bool = True) -> None:
        """A piece of the body, flushed at once."""
        await self._send({"type": "http.response.body", "body": body, "more_body": more})

    async def json(self, status: int, body: bytes, headers: Headers | None = None) -> None:
        """A whole JSON answer."""
        length = (b"content-length", b"%d" % len(body))
        await self.start(status, [(b"content-type", b"application/json"), length, *(headers or ())])
        await self.write(body, more=False)

    async def refuse(self, failure: Failure) -> None:
        """An error answer. A body that was not read is discarded as it comes: closing on it would lose the answer."""
        headers = retry_headers(failure, tried_twice=self.tried_twice)
        await self.json(http_status(failure), error_body(failure), headers)

    def _common_headers(self) -> Headers:
        elapsed_ms = (time.monotonic() - self._arrival.arrived) * 1000
        headers = [
            (b"x-request-id", self._arrival.echo_id.encode()),
            (b"x-tokenpath-request-id", self._arrival.request_id.encode()),
            (b"x-trace-id", self._trace_id.encode()),
            (b"openai-processing-ms", b"%d" % elapsed_ms),
        ]
        if self.pod:
            headers.append((b"x-inference-pod", self.pod.encode()))
        return headers
