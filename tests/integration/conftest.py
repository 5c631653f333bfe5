"""Fixtures of the gateway's tests."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.fakes import RunningGateway, running_gateway


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_gateway() -> AsyncIterator[RunningGateway]:
    """One gateway for a module, whose tests run in the module's event loop."""
    async with running_gateway() as gateway:
        yield gateway


@pytest.fixture
def gateway(shared_gateway: RunningGateway) -> RunningGateway:
    """The module's gateway with fakes that are as new. A test must leave nothing running."""
    shared_gateway.fleet.reset()
    return shared_gateway
