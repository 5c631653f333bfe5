"""A summary as a table for people and as JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict

from loadtest.summary import Latency, Slo, Summary

COLUMNS = ("mean", "p50", "p95", "p99")
FORMULAS = {
    "TTFT": "request sent -> first text",
    "ITL": "gaps between texts, all requests pooled",
    "TPOT": "(E2E - TTFT) / (tokens - 1), one a request",
    "E2E": "request sent -> last text",
}


def to_json(summary: Summary) -> str:
    return json.dumps(asdict(summary), indent=2) + "\n"


def to_table(summary: Summary) -> str:
    """Several lines, at most 110 characters wide."""
    return "\n".join(_lines(summary))


def _lines(summary: Summary) -> Iterator[str]:
    yield f"{summary.requests} requests, {summary.failed} failed, {summary.wall_s:.1f} s"
    yield f"{'ms':<6}{'count':>8}" + "".join(f"{column:>10}" for column in COLUMNS) + "   what it is"
    for name, latency in summary.latencies_ms.items():
        yield f"{name:<6}{latency.count:>8}{_cells(latency)}   {FORMULAS[name]}"
    yield f"throughput   {summary.output_tokens_per_s:.1f} output tokens/s, {summary.requests_per_s:.2f} requests/s"
    yield f"cached       {summary.cached_prompt_share:.0%} of the prompt tokens came from a prefix cache"
    yield (
        f"goodput      {summary.goodput_requests_per_s:.2f} requests/s, {summary.goodput_tokens_per_s:.1f} tokens/s "
        f"that meet {_slo_text(summary.slo)}"
    )
    yield f"attainment   {summary.attainment:.1%} of all requests, failed ones included"
    if summary.dispatch_lag_p99_ms is not None:
        yield f"dispatch lag {summary.dispatch_lag_p99_ms:.2f} ms p99 (how late a user woke up to send)"
    if summary.dispatch_lag_too_large:
        yield "warning: the lag is over 5% of the median TTFT: the load machine is the bottleneck, use fewer users"
    if few := _too_few(summary.latencies_ms["TTFT"].count):
        yield few
    for reason, count in summary.failures.items():
        yield f"failed {count}x: {reason}"


def _too_few(requests: int) -> str:
    """A warning when percentiles are but the slowest request; empty when they say more."""
    unsure = [f"p{share}" for share in (95, 99) if 0 < requests < 100 / (100 - share)]
    if not unsure:
        return ""
    return f"warning: {requests} requests are too few for {' and '.join(unsure)}: that is the slowest one; run longer"


def _cells(latency: Latency) -> str:
    values = (getattr(latency, column) for column in COLUMNS)
    return "".join(f"{value:>10.1f}" if value is not None else f"{'-':>10}" for value in values)


def _slo_text(slo: Slo) -> str:
    limits = {"TTFT": slo.ttft_ms, "TPOT": slo.tpot_ms, "E2E": slo.e2e_ms}
    return ", ".join(f"{name} <= {limit:g} ms" for name, limit in limits.items() if limit is not None) or "no SLO"
