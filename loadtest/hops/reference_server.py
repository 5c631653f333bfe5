"""One plain gRPC hop: the same messages as the real path's, and nothing behind them.

`python -m loadtest.hops.reference_server` prints its port and serves until SIGTERM.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from typing import Any

import grpc
import uvloop

from services.platform.limits import server_options
from tokenpath.v1 import auth_pb2, auth_pb2_grpc, detokenizer_pb2, detokenizer_pb2_grpc

Context = grpc.aio.ServicerContext[Any, Any]


class PlainAuth(auth_pb2_grpc.AuthServicer):
    """Answers at once."""

    async def Authorize(self, request: auth_pb2.AuthorizeRequest, context: Context) -> auth_pb2.Grant:
        return auth_pb2.Grant(key_id="key", tenant="tenant", tier="free", cache_salt="salt")

    async def Settle(self, request: auth_pb2.SettleRequest, context: Context) -> auth_pb2.Receipt:
        return auth_pb2.Receipt(row_id="0-1")


class PlainStream(detokenizer_pb2_grpc.DetokenizerServicer):
    """Sends `choices` messages of one token each, as fast as it goes."""

    async def Stream(
        self, request: detokenizer_pb2.StreamRequest, context: Context
    ) -> AsyncIterator[detokenizer_pb2.StreamResponse]:
        for _ in range(request.choices):
            yield detokenizer_pb2.StreamResponse(deltas=[detokenizer_pb2.Delta(text=" tok", tokens=1)])


async def serve() -> None:
    server = grpc.aio.server(options=server_options())
    auth_pb2_grpc.add_AuthServicer_to_server(PlainAuth(), server)
    detokenizer_pb2_grpc.add_DetokenizerServicer_to_server(PlainStream(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    print(port, flush=True)
    await stop.wait()
    await server.stop(1.0)


if __name__ == "__main__":
    uvloop.run(serve())
