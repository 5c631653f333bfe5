"""Plain endpoints that need a key: authorise, answer, and turn a failure into OpenAI's error shape."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response

from services.gateway.api.arrival import Arrival
from services.gateway.errors import error_body, http_status, retry_headers
from services.gateway.gateway import Gateway
from services.gateway.journey.recorder import Recorder
from services.gateway.leg import Leg
from services.platform.context import RequestContext
from services.platform.failures import Failure
from tokenpath.v1.auth_pb2 import Grant

Answer = Callable[[Request, Grant], Awaitable[Response]]


def json_response(body: bytes, status: int = 200) -> Response:
    """A JSON answer of bytes that are JSON already."""
    return Response(body, status, media_type="application/json")


def error_response(failure: Failure) -> Response:
    """A failure's answer."""
    response = json_response(error_body(failure), http_status(failure))
    for name, value in retry_headers(failure):
        response.headers[name.decode()] = value.decode()
    return response


def guarded(gateway: Gateway, endpoint: str, answer: Answer) -> Callable[[Request], Awaitable[Response]]:
    """`answer` for callers with a valid key; `endpoint` is the metrics' label."""

    async def serve(request: Request) -> Response:
        arrival = Arrival.of(request.scope)
        context = RequestContext(arrival.request_id, 1, "", arrival.trace)
        try:
            deadline = arrival.deadline(gateway.settings.request_timeout_s)
            leg = Leg(gateway.telemetry, Recorder(), context, deadline)
            grant = await gateway.auth.authorize(leg, arrival.key_digest())
            response = await answer(request, grant)
        except Failure as failure:
            response = error_response(failure)
        arrival.name(response)
        gateway.metrics.requests.labels(endpoint, str(response.status_code)).inc()
        return response

    return serve
