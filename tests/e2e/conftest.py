"""Whole stacks for the tests of this folder: started when first needed, once, and ended after the last test here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import httpx
import pytest

from tests.e2e.api import Api
from tests.e2e.otlp_receiver import OtlpReceiver, otlp_receiver
from tests.stack import RunningStack, running_stack

MODEL = "SmolLM2-135M-Instruct"
SLOTS_A_WORKER = 32
QUEUE_LIMIT = 8  # requests that may wait in the scripted stack: few enough for a test to fill


@pytest.fixture(scope="package")
def otlp() -> Iterator[OtlpReceiver]:
    """Where the scripted stack sends its spans."""
    with otlp_receiver() as receiver:
        yield receiver


@pytest.fixture(scope="package")
def scripted_stack(otlp: OtlpReceiver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    """Scripted engine, one prefill and two decode workers."""
    env = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": otlp.endpoint,
        "OTEL_BSP_SCHEDULE_DELAY": "50",
        "TOKENPATH_SCHEDULER_QUEUE_LIMIT": str(QUEUE_LIMIT),
        "TOKENPATH_DECODE_MAX_NUM_SEQS": str(SLOTS_A_WORKER),
    }
    with running_stack(tmp_path_factory.mktemp("scripted"), engine="scripted", decode=2, env=env) as stack:
        yield stack


@pytest.fixture(scope="package")
def model_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    """The real default model, one prefill and one decode worker."""
    with running_stack(tmp_path_factory.mktemp("model"), engine="torch") as stack:
        yield stack


@pytest.fixture
async def api(scripted_stack: RunningStack) -> AsyncIterator[Api]:
    """A client of the scripted stack."""
    async with client_of(scripted_stack) as client:
        yield Api(scripted_stack, client, MODEL)


@pytest.fixture
async def model_api(model_stack: RunningStack) -> AsyncIterator[Api]:
    """A client of the stack with the real model."""
    async with client_of(model_stack) as client:
        yield Api(model_stack, client, MODEL)


def client_of(stack: RunningStack) -> httpx.AsyncClient:
    """For the API of any stack."""
    # Loading certificates, which plain HTTP has no use for, would cost more than the tests themselves.
    return httpx.AsyncClient(base_url=stack.gateway_url, headers=stack.headers, timeout=30, verify=False)
