"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from services.gateway.api.guarded import json_response
from services.gateway.gateway import Gateway
from services.gateway.validation.parse import model_not_found
from tokenpath.v1.auth_pb2 import Grant


class ModelsEndpoint:
    """One model is served, under its exact name."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def list(self, request: Request, grant: Grant) -> Response:
        """All models."""
        return json_response(orjson.dumps({"object": "list", "data": [self._model()]}))

    async def one(self, request: Request, grant: Grant) -> Response:
        """One model; 404 model_not_found for any other name."""
        name = request.path_params["name"]
        if name != self._gateway.model:
            raise model_not_found(name)
        return json_response(orjson.dumps(self._model()))

    def _model(self) -> dict[str, Any]:
        return {
            "id": self._gateway.model,
            "object": "model",
            "created": self._gateway.started_unix,
            "owned_by": "tokenpath",
            "root": self._gateway.model,
            "parent": None,
            "max_model_len": self._gateway.fleet.max_model_len,
        }
