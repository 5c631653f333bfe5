"""Choices of the local stack."""

from __future__ import annotations

import pytest

from services.local.config import StackConfig
from services.local.errors import StackError


def test_choices_come_from_the_environment() -> None:
    config = StackConfig.from_env({"TOKENPATH_LOCAL_ENGINE": "scripted", "TOKENPATH_LOCAL_DECODE": "3", "HOME": "/"})
    assert (config.engine, config.decode, config.prefill) == ("scripted", 3, 1)


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({"TOKENPATH_LOCAL_ENGIN": "torch"}, "TOKENPATH_LOCAL_ENGIN is not a setting"),
        ({"TOKENPATH_LOCAL_DECODE": "two"}, "TOKENPATH_LOCAL_DECODE is 'two'"),
        ({"TOKENPATH_LOCAL_DECODE": "0"}, "at least one decode worker"),
        ({"TOKENPATH_LOCAL_ENGINE": "vllm"}, "torch or scripted"),
        ({"TOKENPATH_LOCAL_PREFILL": "0"}, "TOKENPATH_LOCAL_MODE=aggregated"),
        ({"TOKENPATH_LOCAL_GATEWAY_PORT": "70000"}, "between 1 and 65535"),
    ],
)
def test_a_wrong_choice_is_named(environment: dict[str, str], named: str) -> None:
    with pytest.raises(StackError, match=named):
        StackConfig.from_env(environment)


def test_aggregated_needs_no_prefill_worker() -> None:
    chosen = {"TOKENPATH_LOCAL_PREFILL": "0", "TOKENPATH_LOCAL_MODE": "aggregated"}
    assert StackConfig.from_env(chosen).prefill == 0


def test_workers_share_the_cores_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    assert StackConfig(prefill=1, decode=3).worker_threads == 2
    assert StackConfig(prefill=9, decode=9).worker_threads == 1
    assert StackConfig(threads=5).worker_threads == 5
