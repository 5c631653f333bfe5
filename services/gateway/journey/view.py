"""A finished request's journey, as JSON shows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from services.gateway.journey.recorder import Entry, Recorder
from services.gateway.journey.split import Part
from tokenpath.v1.common_pb2 import StageReport, Usage
from tokenpath.v1.router_pb2 import RouteResponse

Json = dict[str, Any]


@dataclass(frozen=True)
class Ending:
    """How a request ended. `cost_nano_usd` is None when its ledger row is not confirmed yet."""

    request_id: str
    trace_id: str
    instance: str
    model: str
    mode: str
    outcome: str
    usage: Usage
    cost_nano_usd: int | None
    total_ns: int
    route: RouteResponse | None


def journey_json(recorder: Recorder, ending: Ending) -> Json:
    """Times in milliseconds; `start_ms` counts from arrival."""
    ttft_ns = recorder.first_content_ns
    return {
        "request_id": ending.request_id,
        "trace_id": ending.trace_id,
        "model": ending.model,
        "mode": ending.mode,
        "outcome": ending.outcome,
        "started_unix_ms": recorder.started_unix_ns // 1_000_000,
        "usage": usage_json(ending.usage),
        "cost_usd": None if ending.cost_nano_usd is None else ending.cost_nano_usd / 1e9,
        "ttft_ms": None if ttft_ns is None else ttft_ns / 1e6,
        "total_ms": ending.total_ns / 1e6,
        "ttft": {"parts": _parts_json(recorder.ttft_parts(), ttft_ns or 0)},
        "total": {"parts": _parts_json(recorder.total_parts(ending.total_ns), ending.total_ns)},
        "stages": sorted(_stages_json(recorder, ending.instance), key=lambda stage: float(stage["start_ms"])),
        "decision": _decision_json(ending.route),
    }


def usage_json(usage: Usage) -> Json:
    """OpenAI's usage object."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def _parts_json(parts: Sequence[Part], whole_ns: int) -> list[Json]:
    return [
        {"name": part.name, "ms": part.duration_ns / 1e6, "share": part.duration_ns / whole_ns if whole_ns else 0.0}
        for part in parts
    ]


def _stages_json(recorder: Recorder, instance: str) -> list[Json]:
    stages: list[Json] = []
    for entry in recorder.entries:
        if entry.reports:
            stages += [_report_json(report, recorder.started_unix_ns) for report in entry.reports]
        elif entry.is_stage:
            stages.append(_entry_json(entry, instance))
    return stages


def _report_json(report: StageReport, started_unix_ns: int) -> Json:
    return {
        "stage": report.stage,
        "service": report.service,
        "instance": report.instance,
        "start_ms": (report.start_unix_ns - started_unix_ns) / 1e6,
        "duration_ms": report.duration_ns / 1e6,
        "parts": [{"name": part.name, "ms": part.duration_ns / 1e6} for part in report.parts],
        "bytes": report.bytes,
        "tokens": report.tokens,
        "cached_tokens": report.cached_tokens,
        "attributes": dict(report.attributes),
    }


def _entry_json(entry: Entry, instance: str) -> Json:
    attributes = dict(entry.attributes)
    if entry.error:
        attributes["error"] = entry.error
    return {
        "stage": entry.name,
        "service": "gateway",
        "instance": instance,
        "start_ms": entry.start_ns / 1e6,
        "duration_ms": max(entry.end_ns - entry.start_ns, 0) / 1e6,
        "parts": [],
        "bytes": int(attributes.pop("bytes", 0)),
        "tokens": int(attributes.pop("tokens", 0)),
        "cached_tokens": 0,
        "attributes": attributes,
    }


def _decision_json(route: RouteResponse | None) -> Json | None:
    if route is None:
        return None
    return {
        "policy": route.policy,
        "scores": [
            {
                "worker": score.worker.worker_id,
                "role": score.worker.role,
                "score": score.score,
                "terms": {term.name: term.value for term in score.terms},
                "cached_tokens": score.cached_tokens,
            }
            for score in route.scores
        ],
    }
