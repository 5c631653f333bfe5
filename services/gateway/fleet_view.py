"""What the fleet can do, asked of the router once in a while, so that a request needs no question of its own."""

from __future__ import annotations

import asyncio
import logging

import grpc

from services.gateway.clients.router import RouterClient
from tokenpath.v1.router_pb2 import FleetResponse

log = logging.getLogger(__name__)


class FleetView:
    """The last answer of the router."""

    def __init__(self, router: RouterClient, model_limit: int) -> None:
        """`model_limit`: longest prompt + output of the model itself, in tokens."""
        self._router = router
        self._fleet: FleetResponse | None = None
        self.max_model_len = model_limit
        self._model_limit = model_limit

    @property
    def can_serve(self) -> bool:
        """A decode worker is there; it can compute prompts too. A stale view is no promise."""
        return self._fleet is not None and not self._fleet.stale and self._has_decode(self._fleet)

    async def poll(self, interval_s: float) -> None:
        """Keep the view fresh until cancelled."""
        while True:
            await self.refresh()
            await asyncio.sleep(interval_s)

    async def refresh(self) -> None:
        """Ask once. When the router does not answer, lengths stay as they were and `can_serve` is false."""
        try:
            self._fleet = await self._router.fleet()
        except grpc.aio.AioRpcError as error:
            if self._fleet is not None:
                log.warning("the router does not answer: %s", error.code().name)
            self._fleet = None
            return
        lengths = [worker.max_model_len for worker in self._fleet.workers if worker.max_model_len]
        if lengths:
            self.max_model_len = min(self._model_limit, *lengths)

    @staticmethod
    def _has_decode(fleet: FleetResponse) -> bool:
        return any(worker.role == "decode" for worker in fleet.workers)
