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

TTFT = Script(tokens=4)
TTFT_PAUSED = Script(tokens=4, ttft_ms=10.0)
TTFT_REQUESTS, TTFT_WARM_UP = 300, 50
PACED = Script(tokens=64, ttft_ms=10.0, itl_ms=20.0)
PACED_REQUESTS = {1: 4, 32: 64}
FAST = Script(tokens=512)
STEADY = Script(tokens=256, itl_ms=5.0)
STREAMS, STREAM_REQUESTS, STREAM_RUNS = 32, 96, 3


@dataclass(frozen=True)
class TtftCost:
    script_ms: float  # the script's own, already taken off: how long the services had nothing to do
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
    """32 streams. `offered` is what the script would make if the path cost nothing; None: as fast as it goes."""

    offered_tokens_per_s: float | None
    tokens_per_s: float
    tokens_per_s_runs: list[float]
    cpu_us_per_token: float
    cpu_us_per_token_by_service: dict[str, float]
    cpu_us_per_token_outside: dict[str, float]  # Redis, the collector, the load process: not part of the sum
    texts_per_token: float  # 1: one token an event
    reads_per_token: float  # 1: each came alone; less: tokens had caught up with each other on their way


class Phases:
    """Measurements against one stack; every request's prompt is new."""

    def __init__(self, stack: BenchStack) -> None:
        self._stack = stack
        self._serial = count(step=10_000)

    def ttft(self, script: Script = TTFT) -> TtftCost:
        """One client, one request after the other."""
        _say(f"time to first token: {TTFT_REQUESTS} requests, 1 client, an engine that takes {script.ttft_ms:g} ms")
        samples = self._run(script, TTFT_REQUESTS + TTFT_WARM_UP, 1).samples[TTFT_WARM_UP:]
        added = [sample.ttft_ms - script.ttft_ms for sample in samples]
        return TtftCost(
            script_ms=script.ttft_ms,
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

    def throughput(self, script: Script = FAST) -> Throughput:
        """The median of several runs; CPU over all of them."""
        pace = f"a token every {script.itl_ms:g} ms each" if script.itl_ms else "as fast as it goes"
        _say(f"throughput: {STREAMS} clients, {pace}, {STREAM_RUNS} runs of {STREAM_REQUESTS * script.tokens} tokens")
        self._run(script, STREAMS, STREAMS)
        services, helpers = CpuMeter(self._stack.services), CpuMeter(self._stack.helpers)
        results = [self._run(script, STREAM_REQUESTS, STREAMS) for _ in range(STREAM_RUNS)]
        tokens = sum(result.tokens for result in results)
        spent = {name: seconds / tokens * 1e6 for name, seconds in services.spent_s().items()}
        outside = {name: seconds / tokens * 1e6 for name, seconds in helpers.spent_s().items()}
        rates = [result.tokens / result.wall_s for result in results]
        samples = [sample for result in results for sample in result.samples]
        return Throughput(
            offered_tokens_per_s=STREAMS * 1000 / script.itl_ms if script.itl_ms else None,
            tokens_per_s=_p(rates, 50),
            tokens_per_s_runs=rates,
            cpu_us_per_token=sum(spent.values()),
            cpu_us_per_token_by_service=spent,
            cpu_us_per_token_outside={**outside, "load": sum(r.cpu_s for r in results) / tokens * 1e6},
            texts_per_token=sum(sample.texts for sample in samples) / tokens,
            reads_per_token=sum(len(sample.arrivals) for sample in samples) / tokens,
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
