"""What the gateway counts. Labels are bounded: never a model name, a path or a key that a client chose."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_FIRST_TOKEN = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_PER_TOKEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)


class GatewayMetrics:
    """Histograms have the buckets of OpenTelemetry's gen_ai.server.* metrics."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Counter(
            "tokenpath_gateway_requests_total", "Answered requests", ["endpoint", "status"], registry=registry
        )
        self.in_flight = Gauge("tokenpath_gateway_in_flight_requests", "Requests being served", registry=registry)
        self.open_streams = Gauge("tokenpath_gateway_open_streams", "SSE streams being written", registry=registry)
        self.duration = Histogram(
            "tokenpath_gateway_request_duration_seconds",
            "Arrival to last byte",
            ["endpoint"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.first_token = Histogram(
            "tokenpath_gateway_time_to_first_token_seconds",
            "Arrival to first text",
            ["endpoint"],
            buckets=_FIRST_TOKEN,
            registry=registry,
        )
        self.per_token = Histogram(
            "tokenpath_gateway_time_per_output_token_seconds",
            "(end - first text) / (tokens - 1)",
            ["endpoint"],
            buckets=_PER_TOKEN,
            registry=registry,
        )
        self.tokens = Counter(
            "tokenpath_gateway_tokens_total", "Tokens of answered requests", ["type"], registry=registry
        )
        self.fallbacks = Counter(
            "tokenpath_gateway_fallbacks_total", "Work that went another way", ["kind"], registry=registry
        )
        self.outbox_rows = Gauge(
            "tokenpath_gateway_settle_outbox_rows", "Ledger rows not yet confirmed by auth", registry=registry
        )
        self.settle_retries = Counter(
            "tokenpath_gateway_settle_retries_total", "Settle calls that were repeated", registry=registry
        )
        self.settle_lost = Counter(
            "tokenpath_gateway_settle_lost_total", "Ledger rows given up", ["reason"], registry=registry
        )
