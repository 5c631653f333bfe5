"""GET /v1/journeys/{id}: where a request's time went."""

from __future__ import annotations

import grpc
import orjson
from starlette.requests import Request
from starlette.responses import Response

from services.gateway.api.guarded import json_response
from services.gateway.errors import ApiError, echo
from services.gateway.gateway import Gateway
from tokenpath.v1.auth_pb2 import Grant


class JourneysEndpoint:
    """Readable by the tenant whose request it was; for others it does not exist."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def one(self, request: Request, grant: Grant) -> Response:
        """By x-tokenpath-request-id or by the `id` of the answer's body."""
        name = request.path_params["name"]
        journey = self._gateway.journeys.get(grant.tenant, name)
        if journey is None:
            raise ApiError(
                404,
                f"no journey {echo(name)!r} here: only the last {self._gateway.settings.journeys} are kept",
                status=grpc.StatusCode.NOT_FOUND,
                param="id",
                code="journey_not_found",
            )
        return json_response(orjson.dumps(journey))
