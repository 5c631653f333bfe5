"""What every request of a stack must give back, however it ends."""

from __future__ import annotations

from collections.abc import Mapping

from tests.e2e.metrics import samples, total
from tests.eventually import eventually
from tests.stack import RunningStack

_BUSY = {
    "gateway": (
        "tokenpath_gateway_in_flight_requests",
        "tokenpath_gateway_open_streams",
        "tokenpath_gateway_settle_outbox_rows",
    ),
    "scheduler": (
        "tokenpath_scheduler_slots_used",
        "tokenpath_scheduler_queue_length",
        "tokenpath_scheduler_worker_kv_blocks_used",
    ),
    "detokenizer": ("tokenpath_detokenizer_active_streams",),
    "prefill-": ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"),
    "decode-": ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"),
}
RELEASED_S = 5.0  # a fraction of a second on a free machine; a leak is for ever


def busy(stack: RunningStack) -> Mapping[str, float]:
    """Every gauge that is not at its idle value, as `process metric`."""
    found: dict[str, float] = {}
    for process in stack.record.processes:
        for prefix, names in _BUSY.items():
            if process.name.startswith(prefix) and process.alive:
                values = samples(stack.metrics_url(process.name))
                found |= {f"{process.name} {name}": total(values, name) for name in names if total(values, name)}
    return found


async def at_rest(stack: RunningStack, limit_s: float = RELEASED_S) -> None:
    """Wait until nothing is held any more."""
    try:
        await eventually(lambda: not busy(stack), "all gauges at their idle value", limit_s)
    except AssertionError as error:
        raise AssertionError(f"{error}; left: {busy(stack)}") from None


def log_lines(stack: RunningStack) -> dict[str, list[str]]:
    """What each process has written so far."""
    return {process.name: stack.logs(process.name).splitlines() for process in stack.record.processes}
