"""Calls to the detokenizer, which opens the decode worker's stream inside its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import grpc

from services.gateway.engine_request import Ask, engine_request
from services.gateway.leg import Leg
from services.platform.channels import Channels
from services.platform.failures import Failure
from tokenpath.v1.detokenizer_pb2 import StreamRequest, StreamResponse
from tokenpath.v1.detokenizer_pb2_grpc import DetokenizerStub

Consume = Callable[[StreamResponse], Awaitable[None]]


class DetokenizerClient:
    """Cancelling `stream` cancels the decode below it."""

    def __init__(self, channels: Channels, address: str) -> None:
        self._stub = DetokenizerStub(channels.get(address))
        self._address = address

    async def stream(self, leg: Leg, decode_address: str, ask: Ask, descriptor: str | None, consume: Consume) -> None:
        """Hand every message to `consume` as it comes; a slow consumer slows the decode down.

        `descriptor` is a prefill worker's hand-off; without one the decode worker computes the prompt.

        Raises Failure: the decode worker's, or INTERNAL when the stream stops without its end.
        """
        rpc = "tokenpath.v1.Detokenizer/Stream"
        with leg.call("stream", rpc=rpc, address=self._address, peer="the decode worker") as opened:
            call: grpc.aio.UnaryStreamCall[StreamRequest, StreamResponse] = self._stub.Stream(
                _request(leg, decode_address, ask, descriptor), timeout=leg.remaining_s(), metadata=opened.metadata
            )
            ended = False
            try:
                async for message in call:
                    if message.HasField("end"):
                        ended = True
                        opened.entry.reports.extend(message.end.reports)
                    await consume(message)
            finally:
                call.cancel()
            if not ended:
                raise Failure(grpc.StatusCode.INTERNAL, "the answer stopped before its end; send the request again")


def _request(leg: Leg, decode_address: str, ask: Ask, descriptor: str | None) -> StreamRequest:
    return StreamRequest(
        request_id=leg.context.request_id,
        attempt=leg.context.attempt,
        decode_address=decode_address,
        engine_request=engine_request(leg.context.request_id, ask, descriptor).SerializeToString(),
        cache_salt=leg.context.cache_salt,
        prompt_tail=ask.prompt.tail,
        stop=ask.body.stop,
        include_stop_str_in_output=bool(ask.body.include_stop_str_in_output),
        keep_special_tokens=ask.body.skip_special_tokens is False,
        choices=ask.choices,
    )
