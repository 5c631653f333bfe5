"""A streaming HTTP client that knows when each byte went and came.

Plain `http.client`: under Locust its sockets are gevent's, so that a thousand users wait side by side, and
`read1` hands over what has arrived instead of waiting for a full buffer (a client that reads ahead measures
its own buffer). The request counts as sent when the last byte was given to the kernel.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from loadtest.measure import Arrival, Exchange
from loadtest.sse import SseParser

READ_BYTES = 65536
_BROKEN = (OSError, http.client.HTTPException)


class SseClient:
    """One user's keep-alive connection to `base_url` (http://host:port). Not for concurrent use."""

    def __init__(self, base_url: str, timeout_s: float = 120.0) -> None:
        parts = urlsplit(base_url)
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(f"base_url must look like http://host:port, not {base_url!r}")
        self._connection = http.client.HTTPConnection(parts.hostname, parts.port or 80, timeout=timeout_s)

    def post(self, path: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> Exchange:
        """Send one request and read its answer to the end. Never raises for what the server did."""
        payload = json.dumps(body).encode()
        reused = self._connection.sock is not None
        exchange = self._exchange(path, payload, headers)
        if reused and not exchange.headers_ns:  # the server closed the idle connection meanwhile: not its failure
            exchange = self._exchange(path, payload, headers)
        return exchange

    def close(self) -> None:
        self._connection.close()

    def _exchange(self, path: str, payload: bytes, headers: Mapping[str, str]) -> Exchange:
        sent_ns = time.perf_counter_ns()
        try:
            if self._connection.sock is None:
                self._connection.connect()
            self._connection.request("POST", path, payload, {"content-type": "application/json", **headers})
            sent_ns = time.perf_counter_ns()
            response = self._connection.getresponse()
        except _BROKEN as error:
            self._connection.close()
            return Exchange(sent_ns, transport_error=_describe(error))
        headers_ns = time.perf_counter_ns()
        content_type = response.getheader("content-type") or ""
        arrivals, error_code, transport_error = self._read(response, content_type)
        return Exchange(
            sent_ns, headers_ns, response.status, content_type, tuple(arrivals), error_code, transport_error
        )

    def _read(self, response: http.client.HTTPResponse, content_type: str) -> tuple[list[Arrival], str, str]:
        """Events, the error code of a JSON body, and what broke the connection."""
        arrivals: list[Arrival] = []
        parser = SseParser()
        try:
            if not content_type.startswith("text/event-stream"):
                return arrivals, _error_code(response.read()), ""
            while chunk := response.read1(READ_BYTES):
                now = time.perf_counter_ns()
                arrivals.extend(Arrival(now, data) for data in parser.feed(chunk))
        except _BROKEN as error:
            self._connection.close()
            return arrivals, "", _describe(error)
        return arrivals, "", ""


def _error_code(body: bytes) -> str:
    try:
        error = json.loads(body)["error"]
        return str(error.get("code") or error.get("type") or "")
    except (ValueError, KeyError, TypeError, AttributeError):
        return ""


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
