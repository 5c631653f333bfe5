"""B082: a collector that takes connections and never answers costs requests and shutdowns nothing."""

from __future__ import annotations

import socket
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import psutil
import pytest

from tests.e2e.api import Api, script
from tests.e2e.conftest import MODEL
from tests.e2e.faults.ending import terminated
from tests.e2e.faults.fleet import ALL, STREAM, workers_are
from tests.e2e.metrics import metric
from tests.eventually import eventually
from tests.stack import RunningStack, running_stack

REQUESTS = 100
AS_FAST = 1.25  # two stacks on one machine differ by about a tenth when nothing is wrong
EXIT_S = 5.0
SERVICES = ("gateway", "detokenizer", "decode-0", "prefill-0", "scheduler", "router", "auth")


@contextmanager
def black_hole() -> Iterator[str]:
    """The kernel completes the handshake; nobody ever reads."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(128)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture(scope="module")
def blind_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    with (
        black_hole() as endpoint,
        running_stack(tmp_path_factory.mktemp("blind"), env={"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint}) as running,
    ):
        yield running


async def timed(api: Api, number: int) -> float:
    began = time.perf_counter()
    answer = await api.ask(STREAM, f"{number} " + script(pieces=["x"], repeat=10))
    assert answer.text == "x" * 10
    return time.perf_counter() - began


async def test_b082_requests_are_as_fast_and_drops_are_counted(api: Api, blind_stack: RunningStack) -> None:
    """Requests to this stack and to one with a collector take turns."""
    await workers_are(api, *ALL)
    seeing, blind = [], []
    async with httpx.AsyncClient(base_url=blind_stack.gateway_url, headers=blind_stack.headers, verify=False) as client:
        blind_api = Api(blind_stack, client, MODEL)
        for number in range(REQUESTS + 10):
            seeing.append(await timed(api, number))
            blind.append(await timed(blind_api, number))
    ratio = statistics.median(blind[10:]) / statistics.median(seeing[10:])
    assert ratio < AS_FAST
    assert statistics.quantiles(blind[10:], n=10)[-1] < 2 * statistics.quantiles(seeing[10:], n=10)[-1]
    for name in SERVICES:
        await eventually(
            lambda name=name: metric(blind_stack, name, "tokenpath_spans_dropped_total") > 0, f"{name} counts drops"
        )


async def test_b082_everything_ends_soon_and_nothing_is_left(blind_stack: RunningStack) -> None:
    """With spans in every queue. Afterwards no process and no port of the stack is there."""
    async with httpx.AsyncClient(base_url=blind_stack.gateway_url, headers=blind_stack.headers, verify=False) as client:
        await timed(Api(blind_stack, client, MODEL), 0)
    for tier in (SERVICES[:1], SERVICES[1:]):
        for ending in await terminated(blind_stack, *tier):
            assert (ending.exit_status, ending.seconds < EXIT_S) == (0, True), ending
    assert [ending.exit_status for ending in await terminated(blind_stack, "redis-kv", "redis-state")] == [0, 0]
    for process in blind_stack.record.processes:
        assert not psutil.pid_exists(process.pid)
        for port in process.ports.values():
            with socket.socket() as probe:
                assert probe.connect_ex(("127.0.0.1", port)) != 0
