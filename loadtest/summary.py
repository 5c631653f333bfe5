"""What a run amounts to: percentiles of the successful, rates, and goodput over all requests.

* wall time   first request sent -> last answer ended
* goodput     successful requests that meet every SLO / wall time; token goodput counts their output tokens
* attainment  those requests / all requests, failed and refused ones included

An answer of one token has no TPOT: that SLO counts as met. An answer without text has no TTFT: not good.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from loadtest.measure import Measurement
from loadtest.percentiles import percentile
from loadtest.records import Record

QUANTILES = (50, 95, 99)
MS = 1000.0
MAX_LAG_SHARE = 0.05  # of the median TTFT


@dataclass(frozen=True)
class Slo:
    """Limits in ms that a good request keeps; None: no limit."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None

    def met(self, measurement: Measurement) -> bool:
        return (
            measurement.ok
            and measurement.ttft_s is not None
            and _within(measurement.ttft_s, self.ttft_ms)
            and _within(measurement.tpot_s, self.tpot_ms)
            and _within(measurement.e2e_s, self.e2e_ms)
        )


@dataclass(frozen=True)
class Latency:
    """One metric over the successful requests, in ms; None: nothing to measure."""

    count: int
    mean: float | None
    p50: float | None
    p95: float | None
    p99: float | None


@dataclass(frozen=True)
class Summary:
    """One run. Rates are per second of wall time, shares are 0 to 1."""

    requests: int
    failed: int
    failures: dict[str, int]  # reason -> count
    wall_s: float
    latencies_ms: dict[str, Latency]  # TTFT, ITL, TPOT, E2E
    output_tokens_per_s: float
    requests_per_s: float
    cached_prompt_share: float
    slo: Slo
    goodput_requests_per_s: float
    goodput_tokens_per_s: float
    attainment: float
    dispatch_lag_p99_ms: float | None
    dispatch_lag_too_large: bool


def summarise(records: Sequence[Record], slo: Slo) -> Summary:
    """The summary of a whole run. Raises ValueError when there are no records."""
    if not records:
        raise ValueError("no answer ended within the run, so there is nothing to measure: let it run longer")
    every = [record.measurement for record in records]
    successful = [measurement for measurement in every if measurement.ok]
    good = [measurement for measurement in every if slo.met(measurement)]
    wall_s = max(map(_ended_s, records)) - min(record.sent_s for record in records)

    def rate(amount: float) -> float:
        return amount / wall_s if wall_s else 0.0

    latencies = _latencies(successful)
    lag_ms = _ms(percentile([record.dispatch_lag_s for record in records], 99))
    median_ttft = latencies["TTFT"].p50
    prompt_tokens = sum(measurement.prompt_tokens for measurement in successful)
    return Summary(
        requests=len(every),
        failed=len(every) - len(successful),
        failures=dict(Counter(measurement.failure for measurement in every if not measurement.ok).most_common()),
        wall_s=wall_s,
        latencies_ms=latencies,
        output_tokens_per_s=rate(sum(measurement.output_tokens for measurement in successful)),
        requests_per_s=rate(len(successful)),
        cached_prompt_share=sum(m.cached_tokens for m in successful) / prompt_tokens if prompt_tokens else 0.0,
        slo=slo,
        goodput_requests_per_s=rate(len(good)),
        goodput_tokens_per_s=rate(sum(measurement.output_tokens for measurement in good)),
        attainment=len(good) / len(every),
        dispatch_lag_p99_ms=lag_ms,
        dispatch_lag_too_large=bool(lag_ms and median_ttft and lag_ms > MAX_LAG_SHARE * median_ttft),
    )


def _latencies(successful: Sequence[Measurement]) -> dict[str, Latency]:
    return {
        "TTFT": _latency([m.ttft_s for m in successful]),
        "ITL": _latency([gap for m in successful for gap in m.itl_s]),
        "TPOT": _latency([m.tpot_s for m in successful]),
        "E2E": _latency([m.e2e_s for m in successful]),
    }


def _latency(seconds: Sequence[float | None]) -> Latency:
    known = [value for value in seconds if value is not None]
    mean = sum(known) / len(known) if known else None
    return Latency(len(known), _ms(mean), *(_ms(percentile(known, q)) for q in QUANTILES))


def _ended_s(record: Record) -> float:
    measurement = record.measurement
    return record.sent_s + (measurement.e2e_s or measurement.headers_s or 0.0)


def _within(seconds: float | None, limit_ms: float | None) -> bool:
    return seconds is None or limit_ms is None or seconds * MS <= limit_ms


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * MS
