"""Ports of the local stack."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.local import ports
from services.local.errors import StackError


@pytest.fixture
def busy() -> Iterator[int]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


def test_the_usual_port_is_taken_without_a_word(busy: int, monkeypatch: pytest.MonkeyPatch) -> None:
    free = busy + 1 if ports.is_free(busy + 1) else busy + 2
    monkeypatch.setattr(ports, "GATEWAY_DEFAULT", free)
    with ports.gateway_port(0) as chosen:
        assert chosen == (free, "")


def test_a_busy_usual_port_moves_the_gateway_and_says_who_holds_it(busy: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "GATEWAY_DEFAULT", busy)
    with ports.gateway_port(0) as (port, moved):
        assert port > busy
    assert f"port {busy} is in use by" in moved
    assert f"pid {os.getpid()}" in moved


def test_a_busy_port_that_was_asked_for_is_an_error(busy: int) -> None:
    with pytest.raises(StackError, match=f"port {busy} .* is in use by .*choose another"), ports.gateway_port(busy):
        pass


def test_two_stacks_that_start_at_once_take_different_ports_until_one_listens(
    busy: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = busy + 1 if ports.is_free(busy + 1) else busy + 2
    monkeypatch.setattr(ports, "GATEWAY_DEFAULT", free)
    with ports.gateway_port(0) as (first, _):
        with ports.gateway_port(0) as (second, moved):
            assert second > first == free
            assert "a stack that is just starting" in moved
        with pytest.raises(StackError, match="just starting"), ports.gateway_port(first):
            pass
    with ports.gateway_port(0) as (again, _):
        assert again == free


def test_internal_ports_are_free_distinct_and_stay_with_the_folder(tmp_path: Path) -> None:
    names = [f"port-{index}" for index in range(20)]
    chosen = ports.internal_ports(names, tmp_path)
    assert len(set(chosen.values())) == 20
    assert all(ports.is_free(port) for port in chosen.values())
    assert ports.internal_ports(names, tmp_path) == chosen


def test_an_internal_port_in_use_is_passed_over(tmp_path: Path) -> None:
    first = ports.internal_ports(["one"], tmp_path)["one"]
    with socket.socket() as server:
        server.bind(("127.0.0.1", first))
        server.listen()
        assert ports.internal_ports(["one"], tmp_path)["one"] != first


def test_two_folders_start_in_different_blocks(tmp_path: Path) -> None:
    first, second = (ports.internal_ports(["one"], tmp_path / name)["one"] for name in ("first", "second"))
    assert abs(first - second) >= ports.BLOCK - 1
