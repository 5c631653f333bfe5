"""The receiver's HTTP side: traces as JSON, and OTLP/HTTP for senders that do not speak gRPC."""

from __future__ import annotations

import gzip
import zlib
from dataclasses import asdict
from typing import Any

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from services.local.collector.jaeger import jaeger_json
from services.local.collector.spans import Span, received_spans
from services.local.collector.store import TraceStore

PROTOBUF = "application/x-protobuf"
LIST_LIMIT = 20


def web_app(store: TraceStore) -> Starlette:
    """`/traces[/{id}[/jaeger]]`, `/health` and `POST /v1/traces`; an id is a trace's or a request's."""

    async def list_traces(request: Request) -> JSONResponse:
        limit = request.query_params.get("limit", "")
        traces = store.latest(int(limit) if limit.isdecimal() else LIST_LIMIT)
        return JSONResponse({"traces": [_summary(trace) for trace in traces], "dropped_spans": store.dropped_spans})

    async def one_trace(request: Request) -> JSONResponse:
        spans = store.get(request.path_params["identity"])
        if spans is None:
            return _not_here(request)
        return JSONResponse({"trace_id": spans[0].trace_id, "spans": [_shown(span) for span in spans]})

    async def one_trace_for_jaeger(request: Request) -> JSONResponse:
        spans = store.get(request.path_params["identity"])
        return _not_here(request) if spans is None else JSONResponse(jaeger_json([spans]))

    async def export(request: Request) -> Response:
        body = await request.body()
        try:
            if request.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            store.add(received_spans(ExportTraceServiceRequest.FromString(body)))
        except (DecodeError, OSError, EOFError, zlib.error) as error:
            return JSONResponse({"error": f"not an OTLP protobuf export: {error}"}, 400)
        return Response(ExportTraceServiceResponse().SerializeToString(), media_type=PROTOBUF)

    async def health(_: Request) -> JSONResponse:
        return JSONResponse({"spans": store.spans, "dropped_spans": store.dropped_spans})

    return Starlette(
        routes=[
            Route("/traces", list_traces),
            Route("/traces/{identity}", one_trace),
            Route("/traces/{identity}/jaeger", one_trace_for_jaeger),
            Route("/v1/traces", export, methods=["POST"]),
            Route("/health", health),
        ]
    )


def _not_here(request: Request) -> JSONResponse:
    return JSONResponse({"error": f"no trace {request.path_params['identity']} is kept here (any more)"}, 404)


def _summary(spans: list[Span]) -> dict[str, Any]:
    root = next((span for span in spans if not span.parent_id), spans[0])
    return {
        "trace_id": root.trace_id,
        "root": root.name,
        "service": root.service,
        "start_unix_ms": root.start_ns / 1e6,
        "duration_ms": (max(span.end_ns for span in spans) - spans[0].start_ns) / 1e6,
        "spans": len(spans),
        "errors": sum(span.status == "error" for span in spans),
    }


def _shown(span: Span) -> dict[str, Any]:
    return {**asdict(span), "service": span.service, "instance": span.instance}
