"""The stack that the load tools of this folder load."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.stack import RunningStack, running_stack


@pytest.fixture(scope="package")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    """Scripted engine, one prefill and one decode worker."""
    with running_stack(tmp_path_factory.mktemp("clients"), engine="scripted") as running:
        yield running
