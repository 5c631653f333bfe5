"""Calls to the router: which workers, and what the fleet can do."""

from __future__ import annotations

from collections.abc import Sequence

from services.gateway.leg import Leg
from services.gateway.prompts import Prompt
from services.platform.channels import Channels
from tokenpath.v1.router_pb2 import FleetRequest, FleetResponse, Mode, RouteRequest, RouteResponse
from tokenpath.v1.router_pb2_grpc import RouterStub

MODES = {
    "": Mode.MODE_UNSPECIFIED,
    "disaggregated": Mode.MODE_DISAGGREGATED,
    "aggregated": Mode.MODE_AGGREGATED,
}
MODE_NAMES = {Mode.MODE_DISAGGREGATED: "disaggregated", Mode.MODE_AGGREGATED: "aggregated"}


class RouterClient:
    """Calls are capped at `cap_s` seconds each."""

    def __init__(self, channels: Channels, address: str, cap_s: float) -> None:
        self._stub = RouterStub(channels.get(address))
        self._address = address
        self._cap_s = cap_s

    async def route(self, leg: Leg, prompt: Prompt, mode: str, exclude: Sequence[str]) -> RouteResponse:
        """Candidates, best first; `mode` "" is the router's default. Raises Failure: UNAVAILABLE, DEADLINE_EXCEEDED."""
        with leg.call("route", rpc="tokenpath.v1.Router/Route", address=self._address, peer="router") as call:
            request = RouteRequest(
                request_id=leg.context.request_id,
                attempt=leg.context.attempt,
                token_ids=prompt.token_ids,
                cache_salt=leg.context.cache_salt,
                max_tokens=prompt.max_tokens,
                mode=MODES[mode],
                exclude_workers=exclude,
            )
            route = await self._stub.Route(request, timeout=leg.remaining_s(self._cap_s), metadata=call.metadata)
            call.entry.reports.append(route.report)
            call.stage.set("tokenpath.route.policy", route.policy)
            return route

    async def fleet(self) -> FleetResponse:
        """The fleet as the router sees it. Raises grpc.aio.AioRpcError."""
        return await self._stub.Fleet(FleetRequest(), timeout=self._cap_s)
