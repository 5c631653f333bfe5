"""Calls to the auth service: who asks, and what it cost."""

from __future__ import annotations

from services.gateway.leg import Leg
from services.platform.channels import Channels
from tokenpath.v1.auth_pb2 import AuthorizeRequest, Grant, Receipt, SettleRequest
from tokenpath.v1.auth_pb2_grpc import AuthStub

_PEER = "auth"


class AuthClient:
    """Calls are capped at `cap_s` seconds each."""

    def __init__(self, channels: Channels, address: str, cap_s: float) -> None:
        self._stub = AuthStub(channels.get(address))
        self._address = address
        self._cap_s = cap_s

    async def authorize(self, leg: Leg, key_digest: bytes) -> Grant:
        """Raises Failure: UNAUTHENTICATED, UNAVAILABLE, DEADLINE_EXCEEDED."""
        with leg.call("auth", rpc="tokenpath.v1.Auth/Authorize", address=self._address, peer=_PEER) as call:
            grant = await self._stub.Authorize(
                AuthorizeRequest(request_id=leg.context.request_id, key_digest=key_digest),
                timeout=leg.remaining_s(self._cap_s),
                metadata=call.metadata,
            )
            call.entry.reports.append(grant.report)
            return grant

    async def settle(self, leg: Leg, row: SettleRequest) -> Receipt:
        """Raises Failure; after UNAVAILABLE or DEADLINE_EXCEEDED the same row may be sent again."""
        with leg.call("settle", rpc="tokenpath.v1.Auth/Settle", address=self._address, peer=_PEER) as call:
            receipt = await self._stub.Settle(row, timeout=leg.remaining_s(self._cap_s), metadata=call.metadata)
            call.entry.reports.append(receipt.report)
            return receipt
