"""A stub gateway that streams by the clock: what the harness and the bench's client are checked against.

`python -m loadtest.stub [port]` prints its port and serves until it is told to stop. The request's own JSON says
how to answer, under the key "stub": {"role_s", "first_s", "gap_s", "tokens", "end_s", "ending"}. Times are seconds
since the request was read; headers leave at 0. Endings: done, cut (the connection just closes), error (an error
event and a proper end), refused (429).
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from dataclasses import dataclass
from typing import Any

import uvloop

HEADERS = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"cache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n"
)
MODELS = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 24\r\n\r\n" + b'{"data":[{"id":"stub"}]}'
)
REFUSAL = b'{"error":{"message":"full","type":"rate_limit_error","code":"queue_full"}}'


@dataclass(frozen=True)
class Script:
    """How to answer one request."""

    role_s: float = 0.0
    first_s: float = 0.0
    gap_s: float = 0.0
    tokens: int = 8
    end_s: float = 0.0
    ending: str = "done"


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serve one connection's requests until the client closes it."""
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            if head.startswith(b"GET "):
                writer.write(MODELS)
                continue
            length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            body = json.loads(await reader.readexactly(length))
            if not await _respond(writer, Script(**body.get("stub", {}))):
                break
    except (asyncio.IncompleteReadError, ConnectionError):
        pass  # the client left: this stub has nothing to clean up
    finally:
        writer.close()


async def _respond(writer: asyncio.StreamWriter, script: Script) -> bool:
    """Write one answer; whether the connection can be used again."""
    if script.ending == "refused":
        writer.write(b"HTTP/1.1 429 Too Many Requests\r\ncontent-type: application/json\r\n")
        writer.write(b"content-length: %d\r\n\r\n%s" % (len(REFUSAL), REFUSAL))
        return True
    started = asyncio.get_running_loop().time()
    writer.write(HEADERS)
    token = _chunk(delta={"content": " tok"})  # made once: a stub that is slow would be measured instead of the client
    if script.role_s < script.first_s:
        await _until(started + script.role_s)
        writer.write(_chunk(delta={"role": "assistant", "content": ""}))
    for index in range(script.tokens):
        await _until(started + script.first_s + index * script.gap_s)
        writer.write(token)
        await writer.drain()
    await _until(started + script.end_s)
    if script.ending == "cut":
        return False
    if script.ending == "error":
        writer.write(_event({"error": {"message": "worker died", "type": "server_error", "code": "worker_failed"}}))
    else:
        writer.write(_chunk(delta={}, finish_reason="stop"))
        writer.write(_event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": script.tokens}}))
        writer.write(_http_chunk(b"data: [DONE]\n\n"))
    writer.write(b"0\r\n\r\n")
    return True


async def _until(when: float) -> None:
    delay = when - asyncio.get_running_loop().time()
    if delay > 0:
        await asyncio.sleep(delay)


def _chunk(delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return _event({"id": "chatcmpl-stub", "object": "chat.completion.chunk", "model": "stub", "choices": [choice]})


def _event(body: dict[str, Any]) -> bytes:
    return _http_chunk(b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n")


def _http_chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


async def serve(port: int) -> None:
    """Serve until SIGTERM; the first line on stdout is the port."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    server = await asyncio.start_server(answer, "127.0.0.1", port)
    print(server.sockets[0].getsockname()[1], flush=True)
    await stop.wait()
    server.close()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]) if len(sys.argv) > 1 else 0))
