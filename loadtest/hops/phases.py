"""The three questions: what a first token costs, what each further token costs, how many go through."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, pairwise

from loadtest.hops.cpu import CpuMeter
from loadtest.hops.job import Result, Sample
from loadtest.hops.journeys import ttft_parts_ms
from loadtest.hops.processes import run_job
from loadtest.hops.stack import BenchStack
from loadtest.hops.workload import Script, bodies
from loadtest.percentiles import percentile

TTFT = Script(tokens=4, ttft_ms=10.0)
TTFT_REQUESTS, TTFT_WARM_UP = 300, 40
PACED = Script(tokens=64, ttft_ms=10.0, itl_ms=20.0)
PACED_REQUESTS = {1: 4, 32: 64}
FAST = Script(tokens=512)
FAST_CLIENTS, FAST_REQUESTS = 32, 128
FAST_RUNS = 3


@dataclass(frozen=True)
class TtftCost:
    script_ms: float  # the script's own, already taken off
    added_ms_p50: float
    added_ms_p99: float
    requests: int
    parts_ms: dict[str, float]  # median of each part of the gateway's own account of TTFT, the script's wait included


@dataclass(frozen=True)
class TokenCost:
    """Of the gap between tokens: what is over the script's own interval."""

    clients: int
    added_ms_p50: float
    added_ms_p99: float
    second_token_added_ms_p50: float  # the gap after the first token, in which the KV pages change hands


@dataclass(frozen=True)
class Throughput:
    """Tokens as fast as they go."""

    tokens_per_s: float
    tokens_per_s_runs: list[float]
    cpu_us_per_token: float
    cpu_us_per_token_by_service: dict[str, float]
    cpu_us_per_token_outside: dict[str, float]  # Redis, the collector, the load process: not part of the sum
    texts_per_token: float  # 1: one token an event


class Phases:
    """Measurements against one stack; every request's prompt is new."""

    def __init__(self, stack: BenchStack) -> None:
        self._stack = stack
        self._serial = count(step=10_000)

    def ttft(self) -> TtftCost:
        """One client, one request after the other."""
        _say(f"time to first token: {TTFT_REQUESTS} requests, 1 client")
        samples = self._run(TTFT, TTFT_REQUESTS + TTFT_WARM_UP, 1).samples[TTFT_WARM_UP:]
        added = [sample.ttft_ms - TTFT.ttft_ms for sample in samples]
        return TtftCost(
            script_ms=TTFT.ttft_ms,
            added_ms_p50=_p(added, 50),
            added_ms_p99=_p(added, 99),
            requests=len(samples),
            parts_ms=ttft_parts_ms(self._stack, [sample.answer_id for sample in samples[-100:]]),
        )

    def tokens(self, clients: int) -> TokenCost:
        """A token every 20 ms a client, as from a real model."""
        _say(f"time per token: {clients} clients, one token every {PACED.itl_ms:g} ms each")
        samples = self._run(PACED, PACED_REQUESTS[clients], clients).samples
        gaps = [_gaps_ms(sample) for sample in samples]
        added = [gap - PACED.itl_ms for row in gaps for gap in row[1:]]
        second = [row[0] - PACED.itl_ms for row in gaps]
        return TokenCost(clients, _p(added, 50), _p(added, 99), _p(second, 50))

    def throughput(self) -> Throughput:
        """The median of several runs; CPU over all of them."""
        _say(f"throughput: {FAST_CLIENTS} clients, {FAST_RUNS} runs of {FAST_REQUESTS * FAST.tokens} tokens")
        self._run(FAST, FAST_CLIENTS, FAST_CLIENTS)
        services, helpers = CpuMeter(self._stack.services), CpuMeter(self._stack.helpers)
        results = [self._run(FAST, FAST_REQUESTS, FAST_CLIENTS) for _ in range(FAST_RUNS)]
        tokens = sum(result.tokens for result in results)
        spent = {name: seconds / tokens * 1e6 for name, seconds in services.spent_s().items()}
        outside = {name: seconds / tokens * 1e6 for name, seconds in helpers.spent_s().items()}
        rates = [result.tokens / result.wall_s for result in results]
        return Throughput(
            tokens_per_s=_p(rates, 50),
            tokens_per_s_runs=rates,
            cpu_us_per_token=sum(spent.values()),
            cpu_us_per_token_by_service=spent,
            cpu_us_per_token_outside={**outside, "load": sum(r.cpu_s for r in results) / tokens * 1e6},
            texts_per_token=sum(sample.texts for result in results for sample in result.samples) / tokens,
        )

    def _run(self, script: Script, requests: int, clients: int) -> Result:
        return run_job(self._stack.job(bodies(script, self._stack.model, requests, next(self._serial)), clients))


def _gaps_ms(sample: Sample) -> list[float]:
    """Gaps between texts; texts that came with one read have a gap of 0."""
    times = [at for at, texts in sample.arrivals for _ in range(texts)]
    return [(later - earlier) / 1e6 for earlier, later in pairwise(times)]


def _p(values: Sequence[float], q: float) -> float:
    found = percentile(values, q)
    if found is None:
        raise ValueError("a phase of the bench measured nothing")
    return found


def _say(line: str) -> None:
    print(f"bench-hops: {line}", file=sys.stderr, flush=True)
