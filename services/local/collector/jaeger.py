"""Traces in the JSON that Jaeger's UI opens ("Upload > JSON File") and that its query API answers with."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from services.local.collector.spans import Attributes, Span


def jaeger_json(traces: Iterable[Sequence[Span]]) -> dict[str, Any]:
    """`{"data": [trace, ...]}`; times are microseconds, as Jaeger's model has them."""
    return {"data": [_trace(trace) for trace in traces if trace]}


def write_jaeger_file(traces: Iterable[Sequence[Span]], path: Path) -> None:
    """Write in one step, so that a reader never sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.new")
    beside.write_text(json.dumps(jaeger_json(traces)))
    os.replace(beside, path)


def _trace(spans: Sequence[Span]) -> dict[str, Any]:
    processes: dict[tuple[str, str], str] = {}
    for span in spans:
        processes.setdefault((span.service, span.instance), f"p{len(processes) + 1}")
    resources = {processes[span.service, span.instance]: span for span in spans}
    return {
        "traceID": spans[0].trace_id,
        "spans": [_span(span, processes[span.service, span.instance]) for span in spans],
        "processes": {
            key: {
                "serviceName": span.service,
                "tags": _tags({name: value for name, value in span.resource.items() if name != "service.name"}),
            }
            for key, span in resources.items()
        },
        "warnings": None,
    }


def _span(span: Span, process: str) -> dict[str, Any]:
    parents = [(span.trace_id, span.parent_id, "CHILD_OF")] if span.parent_id else []
    links = [(link.trace_id, link.span_id, "FOLLOWS_FROM") for link in span.links]
    return {
        "traceID": span.trace_id,
        "spanID": span.span_id,
        "operationName": span.name,
        "references": [
            {"refType": kind, "traceID": trace_id, "spanID": span_id} for trace_id, span_id, kind in (*parents, *links)
        ],
        "startTime": span.start_ns // 1000,
        "duration": max(0, span.end_ns - span.start_ns) // 1000,
        "tags": _tags({**span.attributes, "span.kind": span.kind, **_status(span)}),
        "logs": [
            {"timestamp": event.time_ns // 1000, "fields": _tags({"event": event.name} | dict(event.attributes))}
            for event in span.events
        ],
        "processID": process,
        "warnings": None,
    }


def _status(span: Span) -> dict[str, Any]:
    if span.status == "unset":
        return {}
    tags: dict[str, Any] = {"otel.status_code": span.status.upper()}
    if span.status == "error":
        tags["error"] = True  # what Jaeger's UI marks red
    if span.status_message:
        tags["otel.status_description"] = span.status_message
    return tags


def _tags(attributes: Attributes) -> list[dict[str, Any]]:
    return [{"key": key, **_typed(value)} for key, value in attributes.items()]


def _typed(value: Any) -> dict[str, Any]:
    match value:
        case bool():
            return {"type": "bool", "value": value}
        case int():
            return {"type": "int64", "value": value}
        case float():
            return {"type": "float64", "value": value}
        case str():
            return {"type": "string", "value": value}
        case _:
            return {"type": "string", "value": json.dumps(value)}
