"""POST /tokenize and /detokenize: the served model's tokenizer, for load tools that check theirs against it."""

from __future__ import annotations

from typing import Annotated

import orjson
from pydantic import BeforeValidator, Field
from starlette.requests import Request
from starlette.responses import Response

from services.gateway.api.body import read_body
from services.gateway.api.guarded import json_response
from services.gateway.errors import bad_request
from services.gateway.gateway import Gateway
from services.gateway.prompts import chat_token_ids, check_ids, text_token_ids
from services.gateway.validation.fields import Body
from services.gateway.validation.messages import Message, parse_messages
from services.gateway.validation.parse import check_model, json_object, validated
from tokenpath.v1.auth_pb2 import Grant

_MOST_TOKENS = 1_000_000  # a fifth of a second during which no stream moves


class TokenizeBody(Body):
    """Either `prompt` or `messages`."""

    prompt: str | None = None
    messages: Annotated[list[Message], BeforeValidator(parse_messages)] | None = None


class DetokenizeBody(Body):
    """Token ids to turn into text, special tokens included."""

    tokens: Annotated[list[Annotated[int, Field(ge=0)]], Field(max_length=_MOST_TOKENS)]


class TokenizeEndpoint:
    """Both directions. `model` may be left out; another model's name is a 404."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def tokenize(self, request: Request, grant: Grant) -> Response:
        """`{count, max_model_len, tokens, token_strs}`."""
        body = validated(TokenizeBody, await self._object(request))
        tokenizer, limit = self._gateway.tokenizer, self._gateway.fleet.max_model_len
        if (body.prompt is None) == (body.messages is None):
            raise bad_request("prompt: give either prompt or messages", "prompt")
        if body.messages is not None:
            tokens = await chat_token_ids(body.messages, tokenizer, limit)
        else:
            tokens = await text_token_ids(body.prompt or "", tokenizer, limit)
        answer = {
            "count": len(tokens),
            "max_model_len": limit,
            "tokens": tokens,
            "token_strs": [tokenizer.token_bytes(token).decode("utf-8", "replace") for token in tokens],
        }
        return json_response(orjson.dumps(answer))

    async def detokenize(self, request: Request, grant: Grant) -> Response:
        """`{prompt}`."""
        body = validated(DetokenizeBody, await self._object(request))
        check_ids("tokens", body.tokens, self._gateway.tokenizer)
        return json_response(orjson.dumps({"prompt": self._gateway.tokenizer.decode(body.tokens, keep_special=True)}))

    async def _object(self, request: Request) -> dict[str, object]:
        headers = dict(request.scope["headers"])
        body = json_object(await read_body(request.receive, headers, self._gateway.settings.max_body_bytes))
        if body.get("model") is not None:
            check_model(body, self._gateway.model)
        return body
