"""One measured request as Locust events of the types HTTP, TTFT, ITL, TPOT and E2E.

A failed request fails exactly one event, so that Locust's failure count is the number of failed requests:
HTTP when no stream began (refused, unreachable), E2E when a stream began and didn't end well. Only successful
requests feed TTFT, ITL and TPOT. ITL is fired once a request as mean and once as max: an event a token
would make Locust's own statistics the bottleneck.
"""

from __future__ import annotations

from typing import Protocol

from loadtest.measure import Measurement

MS = 1000.0


class RequestHook(Protocol):
    """Locust's `environment.events.request`."""

    def fire(self, **event: object) -> None: ...


class RequestFailed(Exception):
    """What Locust shows in its list of failures."""


def fire(hook: RequestHook, name: str, measurement: Measurement) -> None:
    """Report one request under `name` (its path)."""
    streamed = measurement.status == 200 and measurement.headers_s is not None
    failure = None if measurement.ok else RequestFailed(measurement.failure)
    _fire(hook, "HTTP", name, measurement.headers_s, 0, None if streamed else failure)
    if not streamed:
        return
    tokens = measurement.output_tokens
    _fire(hook, "E2E", name, measurement.e2e_s, tokens, failure)
    if failure:
        return
    _fire(hook, "TTFT", name, measurement.ttft_s, 0, None)
    _fire(hook, "TPOT", name, measurement.tpot_s, tokens, None)
    if measurement.itl_s:
        _fire(hook, "ITL", f"{name} mean", sum(measurement.itl_s) / len(measurement.itl_s), tokens, None)
        _fire(hook, "ITL", f"{name} max", max(measurement.itl_s), tokens, None)


def _fire(
    hook: RequestHook, kind: str, name: str, seconds: float | None, tokens: int, failure: Exception | None
) -> None:
    if seconds is None and failure is None:
        return  # nothing to measure, e.g. the TPOT of a one-token answer
    hook.fire(
        request_type=kind,
        name=name,
        response_time=(seconds or 0.0) * MS,
        response_length=tokens,
        exception=failure,
        context={},
    )
