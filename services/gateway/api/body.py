"""Reading a request's body, within bounds."""

from __future__ import annotations

import grpc
from starlette.types import Receive

from services.gateway.errors import ApiError, ClientGone


async def read_body(receive: Receive, headers: dict[bytes, bytes], max_bytes: int) -> bytes:
    """The whole JSON body. Raises ApiError 415 (not JSON by its type) or 413, ClientGone when it is cut short."""
    _check_type(headers.get(b"content-type", b""))
    if int(headers.get(b"content-length", b"0")) > max_bytes:
        raise _too_large(max_bytes)
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone()
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > max_bytes:
            raise _too_large(max_bytes)
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks)


def _check_type(content_type: bytes) -> None:
    kind = content_type.partition(b";")[0].strip().lower()
    if kind != b"application/json" and not (kind.startswith(b"application/") and kind.endswith(b"+json")):
        raise ApiError(415, "send the header Content-Type: application/json", code="unsupported_media_type")


def _too_large(max_bytes: int) -> ApiError:
    return ApiError(
        413,
        f"the body is larger than {max_bytes} bytes",
        status=grpc.StatusCode.OUT_OF_RANGE,
        code="request_too_large",
    )
