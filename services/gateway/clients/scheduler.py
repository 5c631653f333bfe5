"""Calls to the scheduler: wait for a slot, and hold it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import grpc

from services.gateway.engine_request import Ask
from services.gateway.leg import Leg
from services.platform.channels import Channels
from services.platform.failures import Failure
from tokenpath.v1.auth_pb2 import Grant
from tokenpath.v1.router_pb2 import Candidate
from tokenpath.v1.scheduler_pb2 import AdmitCandidate, AdmitRequest, AdmitUpdate, Granted
from tokenpath.v1.scheduler_pb2_grpc import SchedulerStub

AdmitCall = grpc.aio.UnaryStreamCall[AdmitRequest, AdmitUpdate]


class SchedulerClient:
    """The open Admit stream is the slot."""

    def __init__(self, channels: Channels, address: str) -> None:
        self._stub = SchedulerStub(channels.get(address))
        self._address = address

    @asynccontextmanager
    async def slot(self, leg: Leg, grant: Grant, ask: Ask, candidates: Sequence[Candidate]) -> AsyncIterator[Candidate]:
        """Wait in the queue; hold the slot while the block runs; leaving it, however, gives the slot back.

        Raises Failure: RESOURCE_EXHAUSTED (queue full), UNAVAILABLE, DEADLINE_EXCEEDED.
        """
        with leg.call("queue", rpc="tokenpath.v1.Scheduler/Admit", address=self._address, peer="scheduler") as opened:
            call: AdmitCall = self._stub.Admit(
                _request(leg, grant, ask, candidates), timeout=leg.remaining_s(), metadata=opened.metadata
            )
            try:
                granted = await _granted(call)
            except BaseException:
                call.cancel()
                raise
            opened.entry.reports.append(granted.report)
        try:
            yield candidates[granted.candidate]
        finally:
            with leg.own("release"):
                call.cancel()


async def _granted(call: AdmitCall) -> Granted:
    async for update in call:
        if update.HasField("granted"):
            return update.granted
    raise Failure(grpc.StatusCode.UNAVAILABLE, "the scheduler ended the wait without a slot; try again")


def _request(leg: Leg, grant: Grant, ask: Ask, candidates: Sequence[Candidate]) -> AdmitRequest:
    return AdmitRequest(
        request_id=leg.context.request_id,
        attempt=leg.context.attempt,
        tenant=grant.tenant,
        priority=grant.priority,
        slots=ask.choices,
        prompt_tokens=len(ask.prompt.token_ids),
        max_tokens=ask.prompt.max_tokens,
        candidates=[
            AdmitCandidate(prefill_worker_id=candidate.prefill.worker_id, decode_worker_id=candidate.decode.worker_id)
            for candidate in candidates
        ],
    )
