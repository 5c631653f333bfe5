"""OTLP over gRPC: `opentelemetry.proto.collector.trace.v1.TraceService`."""

from __future__ import annotations

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import TraceServiceServicer

from services.local.collector.spans import received_spans
from services.local.collector.store import TraceStore

FULL_NAME = "opentelemetry.proto.collector.trace.v1.TraceService"


class TraceReceiver(TraceServiceServicer):
    """Takes every export; what no longer fits is the store's affair, so an exporter is never made to wait or retry."""

    def __init__(self, store: TraceStore) -> None:
        self._store = store

    async def Export(
        self,
        request: ExportTraceServiceRequest,
        context: grpc.aio.ServicerContext[ExportTraceServiceRequest, ExportTraceServiceResponse],
    ) -> ExportTraceServiceResponse:
        self._store.add(received_spans(request))
        return ExportTraceServiceResponse()
