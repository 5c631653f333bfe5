"""The call to the decode worker that feeds a stream."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
from smg_grpc_proto.generated.vllm_engine_pb2 import AbortRequest, AbortResponse, GenerateResponse

from services.platform.context import RequestContext
from services.platform.failures import Failure, failure_of
from services.platform.stage_trailer import stages_of
from tokenpath.v1.common_pb2 import StageReport

GENERATE = "/vllm.grpc.engine.VllmEngine/Generate"
ABORT = "/vllm.grpc.engine.VllmEngine/Abort"

_ABORT_S = 1.0


class DecodeCall:
    """A running Generate. Whoever makes it calls `cancel` in the end, which does nothing to a call that is over."""

    def __init__(
        self, channel: grpc.aio.Channel, engine_request: bytes, context: RequestContext, timeout_s: float
    ) -> None:
        self._channel = channel
        self._metadata = context.metadata()
        # No serializer: the request goes on as the bytes that came, whatever fields of a newer engine they hold.
        generate: Any = channel.unary_stream(GENERATE, response_deserializer=GenerateResponse.FromString)
        self._call = generate(engine_request, timeout=timeout_s, metadata=self._metadata)
        self.stage_reports: list[StageReport] = []  # the worker's own, once its stream has ended

    async def read(self) -> GenerateResponse | None:
        """The next message, None after the last. Raises Failure with the worker's own status and detail."""
        try:
            message = await self._call.read()
        except grpc.aio.AioRpcError as error:
            self._keep_reports(error.trailing_metadata())
            if error.code() is grpc.StatusCode.CANCELLED:  # the worker's doing: ours would not come this way
                raise Failure(
                    grpc.StatusCode.UNAVAILABLE,
                    "the decode worker ended the request; send it again",
                    code="service_unavailable",
                ) from error
            raise failure_of(error, "decode") from error
        if message is not grpc.aio.EOF:
            return message  # type: ignore[no-any-return]
        self._keep_reports(await self._call.trailing_metadata())
        return None

    async def read_to_end(self, wait_s: float) -> None:
        """Read on for `stage_reports`, which come with the end of the stream, for at most `wait_s` seconds."""
        try:
            async with asyncio.timeout(wait_s):
                while await self.read() is not None:
                    pass
        except (TimeoutError, Failure):  # all text is out already: how the call ended changes nothing for the client
            self.cancel()

    async def abort(self, sequence_id: str) -> None:
        """Tell the worker that this sequence is not wanted any more. Raises Failure."""
        abort: Any = self._channel.unary_unary(
            ABORT, request_serializer=AbortRequest.SerializeToString, response_deserializer=AbortResponse.FromString
        )
        try:
            await abort(AbortRequest(request_ids=[sequence_id]), timeout=_ABORT_S, metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            raise failure_of(error, "decode") from error

    def cancel(self) -> None:
        self._call.cancel()

    def _keep_reports(self, metadata: Any) -> None:
        self.stage_reports = list(stages_of(metadata)) or self.stage_reports
