"""Calls to prefill workers: compute the prompt, get the descriptor with which a decode worker goes on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import grpc
from smg_grpc_proto.generated.vllm_engine_pb2 import GenerateRequest, GenerateResponse

from services.gateway.engine_request import REMOTE_DECODE, Ask, engine_request
from services.gateway.leg import Leg
from services.platform.channels import Channels
from services.platform.failures import Failure
from tokenpath.v1.common_pb2 import WorkerInfo

_GENERATE = "vllm.grpc.engine.VllmEngine/Generate"


@dataclass(frozen=True)
class Handoff:
    """What a decode worker needs to go on: the descriptor, relayed verbatim, and who can read its pages."""

    descriptor: str
    fingerprint: str


class PrefillClient:
    """A prompt may take `cap_s` seconds, then the worker counts as silent."""

    def __init__(self, channels: Channels, cap_s: float) -> None:
        self._channels = channels
        self._cap_s = cap_s

    async def prefill(self, leg: Leg, worker: WorkerInfo, ask: Ask) -> Handoff:
        """Raises Failure, with the worker's own code and message where it gave them."""
        with leg.call("prefill", rpc=_GENERATE, address=worker.address, peer=worker.worker_id) as opened:
            request = engine_request(leg.context.request_id, ask, REMOTE_DECODE)
            generate = self._generate(worker.address)
            call = generate(request, timeout=leg.remaining_s(self._cap_s), metadata=opened.metadata)
            descriptor = ""
            try:
                async for response in call:
                    descriptor = response.complete.kv_transfer_params_json or descriptor
                opened.take_reports(await call.trailing_metadata())
            finally:
                call.cancel()
            if not descriptor:
                raise Failure(grpc.StatusCode.INTERNAL, f"{worker.worker_id} ended without a hand-off descriptor")
            return Handoff(descriptor, worker.fingerprint)

    def _generate(self, address: str) -> Any:
        """Only the one method: a whole stub a call would cost as much as the call."""
        return self._channels.get(address).unary_stream(
            f"/{_GENERATE}",
            request_serializer=GenerateRequest.SerializeToString,
            response_deserializer=GenerateResponse.FromString,
        )
