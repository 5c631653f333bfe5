"""The HTTP server's own bounds, with a small application behind it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
from starlette.types import Receive, Scope, Send

from services.gateway import http_protocol
from services.gateway.http_protocol import HEAD_BYTES
from services.gateway.http_server import HttpServer
from tests.eventually import eventually

HEAD = b"GET / HTTP/1.1\r\nhost: x\r\n"


@dataclass
class App:
    """Answers with the length of the body; at /wait it waits until the client has left."""

    port: int = 0
    waiting: int = 0
    gone: list[str] = field(default_factory=list)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        size, message = 0, {"more_body": True}
        while message.get("more_body"):
            message = dict(await receive())
            size += len(message.get("body", b""))
        if scope["path"] == "/wait":
            self.waiting += 1
            while (await receive())["type"] != "http.disconnect":
                pass
            self.gone.append(scope["path"])
        body = b"%d" % size
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
        await send({"type": "http.response.body", "body": body})

    async def exchange(self, *pieces: bytes) -> bytes:
        """Send pieces and read until the server closes; requests must end the connection themselves."""
        async with asyncio.timeout(10):
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            answer = asyncio.create_task(reader.read())
            for piece in pieces:
                writer.write(piece)
                await asyncio.sleep(0.01)  # a packet of its own
            said = await answer
            writer.close()
            return said


@pytest.fixture
async def app() -> AsyncIterator[App]:
    app = App()
    server = HttpServer(app, "127.0.0.1", 0, 1)
    app.port = int(server.address.rpartition(":")[2])
    await server.start()
    yield app
    await server.stop()


async def test_requests_in_pieces_and_large_bodies_are_fine(app: App) -> None:
    post = b"POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 500000\r\n\r\n"
    first = HEAD + b"\r\n"
    answer = await app.exchange(first[:10], first[10:], post, b"a" * 250_000, b"a" * 250_000)
    assert answer.count(b"HTTP/1.1 200 OK") == 2
    assert answer.endswith(b"500000")


async def test_a_head_without_end_is_refused(app: App) -> None:
    answer = await app.exchange(HEAD + b"x-long: " + b"a" * (HEAD_BYTES + 1))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 431 ")
    assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}


async def test_b017_what_is_no_http_is_refused_in_the_shape_of_all_errors(app: App) -> None:
    answer = await app.exchange(b"\x16\x03\x01 hello\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert "HTTP" in json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["message"]


@pytest.mark.parametrize("begun", [[], [b"\r\n"], [HEAD], [HEAD + b"\r\n", HEAD]])
async def test_a_head_that_takes_too_long_ends_the_connection(
    app: App, monkeypatch: pytest.MonkeyPatch, begun: list[bytes]
) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_S", 0.3)
    answer = await app.exchange(*begun)
    assert answer.count(b"200 OK") == sum(piece.endswith(b"\r\n\r\n") for piece in begun)


async def test_b028_of_a_pipeline_every_request_ends_with_its_client(app: App) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", app.port)
    writer.write(b"GET /wait HTTP/1.1\r\nhost: x\r\n\r\n" + HEAD + b"\r\n")
    await eventually(lambda: app.waiting == 1, "the first request runs")
    writer.transport.abort()
    await eventually(lambda: app.gone == ["/wait"], "it is told that the client left")
