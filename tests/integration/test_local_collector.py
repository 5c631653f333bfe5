"""The stack's own OTLP receiver, fed by the real exporters."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.context import Context
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.trace import SpanKind

from services.local.collector.app import CollectorSettings, build
from services.local.collector.spans import read, received_spans
from services.local.collector.store import TraceStore
from services.local.ports import internal_ports
from services.platform.metrics import new_registry
from services.platform.server import serving
from services.platform.telemetry import Telemetry


def export_of(trace: int, spans: int = 1, request_id: str = "") -> ExportTraceServiceRequest:
    request = ExportTraceServiceRequest()
    scope = request.resource_spans.add().scope_spans.add()
    for index in range(spans):
        span = scope.spans.add(
            trace_id=trace.to_bytes(16, "big"), span_id=(index + 1).to_bytes(8, "big"), name=f"span {index}"
        )
        span.start_time_unix_nano = 1000 + index
        if request_id:
            span.attributes.add(key="tokenpath.request.id").value.string_value = request_id
    return request


@pytest.fixture
async def collector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    port = internal_ports(["http"], tmp_path)["http"]
    settings = CollectorSettings(http_port=port, jaeger_file=tmp_path / "traces.json")
    async with serving("collector", settings, build) as runtime:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://{runtime.address}")
        url = f"http://127.0.0.1:{port}"
        async with httpx.AsyncClient() as client:
            while True:
                try:
                    await client.get(f"{url}/health")
                    break
                except httpx.ConnectError:
                    await asyncio.sleep(0.02)
        yield url


async def send_one_request() -> None:
    telemetry = Telemetry("gateway", "gateway-0", new_registry())
    with telemetry.stage("request", parent=Context(), kind=SpanKind.SERVER) as root:
        root.set("tokenpath.request.id", "req_1")
        with telemetry.stage("auth", parent=root.context) as child:
            child.set("tokens", 7)
            child.event("first_token", n=1)
    await asyncio.to_thread(telemetry.close)


async def get(url: str) -> Any:
    async with httpx.AsyncClient() as client:
        reply = await client.get(url)
        assert reply.status_code == 200, reply.text
        return reply.json()


async def test_an_exported_trace_is_found_by_trace_id_and_by_request_id(collector: str) -> None:
    await send_one_request()
    (summary,) = (await get(f"{collector}/traces"))["traces"]
    assert (summary["root"], summary["service"], summary["spans"]) == ("request", "gateway", 2)
    by_request = await get(f"{collector}/traces/req_1")
    assert by_request == await get(f"{collector}/traces/{summary['trace_id']}")
    root, child = by_request["spans"]
    assert (root["kind"], root["parent_id"], child["parent_id"]) == ("server", "", root["span_id"])
    assert child["attributes"]["tokens"] == 7
    assert child["events"][0]["name"] == "first_token"
    assert child["instance"] == "gateway-0"


async def test_a_trace_in_jaegers_form_has_its_spans_processes_and_parents(collector: str) -> None:
    await send_one_request()
    (trace,) = (await get(f"{collector}/traces/req_1/jaeger"))["data"]
    root, child = trace["spans"]
    reference = {"refType": "CHILD_OF", "traceID": trace["traceID"], "spanID": root["spanID"]}
    assert (root["references"], child["references"]) == ([], [reference])
    assert trace["processes"][child["processID"]]["serviceName"] == "gateway"
    assert {"key": "tokens", "type": "int64", "value": 7} in child["tags"]
    assert {"key": "span.kind", "type": "string", "value": "server"} in root["tags"]
    assert child["logs"][0]["fields"][0] == {"key": "event", "type": "string", "value": "first_token"}
    assert isinstance(root["startTime"], int)
    assert isinstance(root["duration"], int)


async def test_the_last_traces_are_written_for_jaeger_when_the_receiver_stops(tmp_path: Path) -> None:
    port = internal_ports(["http"], tmp_path)["http"]
    settings = CollectorSettings(http_port=port, jaeger_file=tmp_path / "traces.json")
    transport = httpx.AsyncHTTPTransport(retries=5)
    async with serving("collector", settings, build), httpx.AsyncClient(transport=transport) as client:
        body = export_of(7, spans=2).SerializeToString()
        reply = await client.post(f"http://127.0.0.1:{port}/v1/traces", content=body)
        assert reply.status_code == 200
    (trace,) = json.loads((tmp_path / "traces.json").read_text())["data"]
    assert (trace["traceID"], len(trace["spans"])) == (f"{7:032x}", 2)


async def test_what_is_not_kept_is_404_and_what_is_not_otlp_is_400(collector: str) -> None:
    async with httpx.AsyncClient() as client:
        assert (await client.get(f"{collector}/traces/req_none")).status_code == 404
        assert (await client.post(f"{collector}/v1/traces", content=b"\xff\xff")).status_code == 400


def test_the_store_forgets_the_quietest_trace_first_and_counts_what_it_drops() -> None:
    store = TraceStore(max_traces=2, max_spans=100)
    for trace in (1, 2):
        store.add(received_spans(export_of(trace, request_id=f"req_{trace}")))
    store.add(received_spans(export_of(1, spans=2)))
    store.add(received_spans(export_of(3)))
    assert store.get("req_2") is None
    assert store.get("req_1") is not None
    assert store.dropped_spans == 1


def test_the_store_is_bounded_by_its_spans_too() -> None:
    store = TraceStore(max_traces=100, max_spans=10)
    for trace in range(1, 6):
        store.add(received_spans(export_of(trace, spans=4)))
    assert store.spans == 8
    assert store.dropped_spans == 12
    assert len(store.latest(100)) == 2


def test_a_span_without_valid_ids_is_skipped() -> None:
    request = export_of(1)
    request.resource_spans[0].scope_spans[0].spans.add(trace_id=b"short", span_id=b"x", name="broken")
    assert [read(received).name for received in received_spans(request)] == ["span 0"]
