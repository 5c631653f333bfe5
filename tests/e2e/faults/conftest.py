"""One scripted stack whose processes the tests of this folder kill, freeze and restart.

Each test says with `workers_are` which workers it needs, so none depends on how the one before left the stack.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import httpx
import pytest

from tests.e2e.api import Api
from tests.e2e.conftest import MODEL
from tests.e2e.otlp_receiver import OtlpReceiver
from tests.stack import RunningStack, running_stack

SLOTS = 8  # sequences that one decode worker runs
DRAIN_S = 3


@pytest.fixture(scope="package")
def stack(otlp: OtlpReceiver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    """One prefill and two decode workers with few slots."""
    env = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": otlp.endpoint,
        "OTEL_BSP_SCHEDULE_DELAY": "50",
        "TOKENPATH_GATEWAY_JOURNEYS": "20",  # so that memory which grows with every request is a leak
        "TOKENPATH_GATEWAY_DRAIN_S": str(DRAIN_S),
        "TOKENPATH_DECODE_DRAIN_S": str(DRAIN_S),
        "TOKENPATH_DECODE_MAX_NUM_SEQS": str(SLOTS),
        "TOKENPATH_PREFILL_MAX_NUM_SEQS": str(SLOTS),
    }
    with running_stack(tmp_path_factory.mktemp("faults"), decode=2, env=env) as running:
        yield running


@pytest.fixture
async def api(stack: RunningStack) -> AsyncIterator[Api]:
    """A client of this folder's stack."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(
        base_url=stack.gateway_url, headers=stack.headers, timeout=30, verify=False, limits=limits
    ) as client:
        yield Api(stack, client, MODEL)
