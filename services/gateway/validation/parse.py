"""The bytes of a body -> a validated request, or a 400 that names what is wrong."""

from __future__ import annotations

from typing import Any, TypeVar

import orjson
from pydantic import ValidationError

from services.gateway.errors import ApiError, bad_request, echo
from services.gateway.validation.chat import ChatBody
from services.gateway.validation.completions import CompletionsBody
from services.gateway.validation.fields import Body, explain
from services.gateway.validation.unsupported import CHAT, COMPLETIONS, refuse_unsupported

B = TypeVar("B", bound=Body)


def json_object(raw: bytes) -> dict[str, Any]:
    """Parse by RFC 8259: no NaN, no lone surrogates, no bad UTF-8, no BOM, no bottomless nesting."""
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise bad_request(f"the body is not valid JSON: {error.msg} at byte {error.pos}") from None
    if not isinstance(value, dict):
        raise bad_request("the body must be a JSON object")
    return value


def parse_chat(raw: bytes, served_model: str) -> ChatBody:
    """Validate a chat request. Raises ApiError (400, or 404 for a model that is not ours)."""
    body = json_object(raw)
    check_model(body, served_model)
    refuse_unsupported(body, CHAT)
    return validated(ChatBody, body)


def parse_completions(raw: bytes, served_model: str) -> CompletionsBody:
    """Validate a completions request. Raises ApiError (400, or 404 for a model that is not ours)."""
    body = json_object(raw)
    check_model(body, served_model)
    refuse_unsupported(body, COMPLETIONS)
    return validated(CompletionsBody, body)


def validated(model: type[B], body: dict[str, Any]) -> B:
    """`body` as a `model`. Raises a 400 that names the first field at fault."""
    try:
        return model.model_validate(body)
    except ValidationError as error:
        raise explain(error) from None


def check_model(body: dict[str, Any], served_model: str) -> None:
    """Names are compared exactly: a request for another model must not be answered by, or billed as, this one."""
    name = body.get("model")
    if name is None:
        raise bad_request("model: is required", "model")
    if not isinstance(name, str):
        raise bad_request("model: must be a string", "model")
    if name != served_model:
        raise model_not_found(name)


def model_not_found(name: str) -> ApiError:
    """404, with at most a few characters of the name."""
    message = f"the model {echo(name)!r} does not exist here; GET /v1/models lists what does"
    return ApiError(404, message, param="model", code="model_not_found")
