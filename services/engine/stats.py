"""The worker's Prometheus metrics, under the names that dashboards for vLLM know."""

from __future__ import annotations

import time
from collections import deque

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from services.engine.outcome import Emission, Load, Outcome
from services.engine.timing import SequenceTiming

_TTFT_BUCKETS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 30.0)
_ITL_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_REQUEST_BUCKETS = (0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 240.0)

RATE_WINDOW_S = 10.0
"""Throughput is the mean over this long."""


class EngineStats:
    """Fed on the event loop with everything that comes out of the core. One a registry."""

    def __init__(self, registry: CollectorRegistry, model_name: str, *, block_size: int, num_blocks: int) -> None:
        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"vllm:{name}", text, ["model_name"], registry=registry).labels(model_name)

        def counter(name: str, text: str) -> Counter:
            return Counter(f"vllm:{name}", text, ["model_name"], registry=registry).labels(model_name)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"vllm:{name}", text, ["model_name"], registry=registry, buckets=buckets).labels(
                model_name
            )

        self._running = gauge("num_requests_running", "Sequences in the batch")
        self._waiting = gauge("num_requests_waiting", "Sequences that wait for the batch")
        self._usage = gauge("kv_cache_usage_perc", "Share of KV blocks held by live sequences, 0 to 1")
        self._queries = counter("prefix_cache_queries", "Prompt tokens looked up in the prefix cache")
        self._hits = counter("prefix_cache_hits", "Prompt tokens found in the prefix cache")
        self._prompt_tokens = counter("prompt_tokens", "Prompt tokens computed")
        self._generation_tokens = counter("generation_tokens", "Tokens generated")
        self._preemptions = counter("num_preemptions", "Sequences whose KV was given up to make room")
        self._ttft = histogram("time_to_first_token_seconds", "Submission to first token", _TTFT_BUCKETS)
        self._itl = histogram("inter_token_latency_seconds", "Between two tokens of a sequence", _ITL_BUCKETS)
        self._e2e = histogram("e2e_request_latency_seconds", "Submission to last token", _REQUEST_BUCKETS)
        self._queue = histogram("request_queue_time_seconds", "Submission to admission", _REQUEST_BUCKETS)
        self._prefill = histogram("request_prefill_time_seconds", "Steps that computed the prompt", _REQUEST_BUCKETS)
        self._decode = histogram("request_decode_time_seconds", "Steps that computed new tokens", _REQUEST_BUCKETS)
        self._success = Counter(
            "vllm:request_success", "Sequences that ended", ["model_name", "finished_reason"], registry=registry
        )
        info = Gauge(
            "vllm:cache_config_info",
            "The KV pool; the value is always 1",
            ["model_name", "block_size", "num_gpu_blocks"],
            registry=registry,
        )
        info.labels(model_name, str(block_size), str(num_blocks)).set(1)
        self._model_name = model_name
        self._preempted = 0
        self._looked_up = self._found = 0
        self._generated: deque[tuple[float, int]] = deque()
        self._generated_sum = 0
        self._started = time.monotonic()

    @property
    def hit_rate(self) -> float:
        """Share of prompt tokens found in the prefix cache since the start, 0 to 1."""
        return self._found / self._looked_up if self._looked_up else 0.0

    @property
    def tokens_per_s(self) -> float:
        """Tokens generated a second, over the last RATE_WINDOW_S."""
        now = time.monotonic()
        self._forget_before(now - RATE_WINDOW_S)
        return self._generated_sum / min(RATE_WINDOW_S, max(now - self._started, 1e-3))

    def record(self, outcome: Outcome) -> None:
        self._record_load(outcome.load)
        if outcome.step is not None:
            self._prompt_tokens.inc(outcome.step.prefill_tokens)
            self._generation_tokens.inc(outcome.step.decode_tokens)
            now = time.monotonic()
            self._generated.append((now, outcome.step.decode_tokens))
            self._generated_sum += outcome.step.decode_tokens
            self._forget_before(now - RATE_WINDOW_S)
        for prompt_tokens, cached_tokens in outcome.admitted:
            self._queries.inc(prompt_tokens)
            self._hits.inc(cached_tokens)
            self._looked_up += prompt_tokens
            self._found += cached_tokens
        for emission in outcome.emissions:
            self._record_emission(emission)

    def _record_load(self, load: Load) -> None:
        self._running.set(load.running)
        self._waiting.set(load.waiting)
        self._usage.set(load.usage.used / load.usage.total if load.usage.total else 0.0)
        self._preemptions.inc(load.preemptions - self._preempted)
        self._preempted = load.preemptions

    def _record_emission(self, emission: Emission) -> None:
        if emission.gap_ns:
            self._itl.observe(emission.gap_ns / 1e9)
        if emission.timing is not None:
            reason = "error" if emission.failure is not None else emission.finish
            self._success.labels(self._model_name, reason).inc()
            if emission.failure is None:
                self._record_timing(emission.timing)

    def _record_timing(self, timing: SequenceTiming) -> None:
        if timing.first_token_ns:
            self._ttft.observe(timing.first_token_ns / 1e9)
        self._e2e.observe(timing.total_ns / 1e9)
        self._queue.observe(timing.queue_ns / 1e9)
        self._prefill.observe(timing.prefill_ns / 1e9)
        self._decode.observe(timing.decode_ns / 1e9)

    def _forget_before(self, instant: float) -> None:
        while self._generated and self._generated[0][0] < instant:
            self._generated_sum -= self._generated.popleft()[1]
