"""What the processes of a stack count, read as Prometheus would read it."""

from __future__ import annotations

from collections.abc import Mapping

import httpx

from tests.stack import RunningStack


def samples(url: str) -> Mapping[str, float]:
    """Every sample by its name with labels, as it stands in the text."""
    lines = httpx.get(url).text.splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


def total(values: Mapping[str, float], name: str) -> float:
    """The sum of a metric over its labels; 0 while there is none."""
    return sum(value for key, value in values.items() if key.partition("{")[0] == name)


def metric(stack: RunningStack, process: str, name: str) -> float:
    """One metric of one process, summed over its labels."""
    return total(samples(stack.metrics_url(process)), name)


def engine_is_idle(stack: RunningStack, worker: str) -> bool:
    """No sequence runs or waits, and none holds a block."""
    values = samples(stack.metrics_url(worker))
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
    return all(total(values, name) == 0 for name in names)
