"""uvicorn inside our own event loop: it binds, serves and drains when told, and leaves signals alone."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from services.gateway.http_protocol import BoundedProtocol
from services.platform.startup import StartupError

_KEEP_ALIVE_S = 75  # above what client libraries keep idle connections for, so that they close first


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.accepting = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.accepting.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The service's harness owns the signals."""
        yield


class HttpServer:
    """Serves `app` from `start` to `stop`."""

    def __init__(self, app: ASGIApp, host: str, port: int, grace_s: float) -> None:
        """Binds at once. StartupError when the port is taken. `grace_s`: what running answers get at the stop."""
        self._socket = _bound(host, port)
        self.address = f"{host}:{self._socket.getsockname()[1]}"
        config = uvicorn.Config(
            app,
            http=BoundedProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=round(grace_s),
        )
        self._server = _Server(config)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Serve; returns when connections are accepted."""
        self._task = asyncio.create_task(self._server.serve([self._socket]), name="http server")
        await self._server.accepting.wait()

    async def stop(self) -> None:
        """Accept no more connections, wait for running answers, close."""
        self._server.should_exit = True
        if self._task is not None:
            await self._task


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise StartupError(
            f"can't listen on {host}:{port} ({error.strerror}); set another TOKENPATH_GATEWAY_HTTP_PORT, "
            "or TOKENPATH_LOCAL_GATEWAY_PORT for `make up`"
        ) from None
    return sock
