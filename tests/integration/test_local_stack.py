"""The whole stack on this machine: up, used through the command, down, and what can be in the way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from services.local import records
from services.local.errors import StackError
from services.local.ports import is_free
from services.local.records import StackRecord
from tests.stack import RunningStack, running_stack


def command(folder: Path, *arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """`tokenpath <arguments>` for the stack of a folder, its output in a pipe."""
    return subprocess.run(
        [sys.executable, "-m", "services.local.cli", *arguments],
        env={**os.environ, "TOKENPATH_LOCAL_FOLDER": str(folder), "TOKENPATH_LOCAL_ENGINE": "scripted", **(env or {})},
        capture_output=True,
        text=True,
        timeout=100,
    )


def wait_for(condition: Callable[[], object], timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.02)


def processes_of(folder: Path) -> list[str]:
    """Every process that was started for a folder's stack, on record or not."""
    mark = f"TOKENPATH_LOCAL_FOLDER={folder}".encode()
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if mark in environ.read_bytes().split(b"\0"):
                found.append(environ.parent.joinpath("cmdline").read_text().replace("\0", " "))
    return found


def assert_nothing_left(record: StackRecord) -> None:
    assert not [process.name for process in record.processes if process.alive]
    assert all(is_free(port) for process in record.processes for port in process.ports.values())


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    with running_stack(tmp_path_factory.mktemp("stack")) as one:
        yield one


def test_a_second_up_says_that_it_runs_and_changes_nothing(stack: RunningStack) -> None:
    again = command(stack.folder.path, "up", env={"TOKENPATH_LOCAL_DECODE": "2"})
    assert again.returncode == 0, again.stderr
    assert "runs already" in again.stdout
    assert "other settings" in again.stdout
    assert stack.api_key in again.stdout
    assert f"{stack.gateway_url}/v1" in again.stdout
    assert records.load(stack.folder.record) == stack.record


def test_status_shows_every_process_with_its_memory_and_a_total(stack: RunningStack) -> None:
    shown = command(stack.folder.path, "status")
    assert shown.returncode == 0, shown.stdout
    lines = {line.split()[0]: line for line in shown.stdout.splitlines()[1:]}
    assert set(lines) == {process.name for process in stack.record.processes} | {"total"}
    assert all("serving" in line for name, line in lines.items() if name != "total")
    assert str(stack.process("decode-0").pid) in lines["decode-0"]


def test_an_answer_its_journey_and_its_trace_from_the_command(stack: RunningStack) -> None:
    asked = command(stack.folder.path, "ask", 'SCRIPT:{"text": "Paris, as ever."}', "--max-tokens", "20")
    assert asked.returncode == 0, asked.stderr
    assert asked.stdout.startswith("Paris, as ever.\n")
    request_id = stack.folder.last_request.read_text()
    assert request_id in asked.stdout

    journey = command(stack.folder.path, "journey", "last")
    assert journey.returncode == 0, journey.stderr
    assert request_id in journey.stdout
    assert journey.stdout.count("100.0%") == 2
    for stage in ("auth", "route", "queue", "prefill", "kv_fetch", "decode", "detokenize", "settle"):
        assert stage in journey.stdout
    assert "\033" not in journey.stdout

    trace = command(stack.folder.path, "trace", request_id)
    assert trace.returncode == 0, trace.stderr
    for instance in ("gateway", "auth", "router", "scheduler", "prefill-0", "decode-0", "detokenizer"):
        assert instance in trace.stdout
    assert "Paris" not in trace.stdout


def test_what_can_not_be_done_is_said_in_one_line(stack: RunningStack) -> None:
    asked = command(stack.folder.path, "ask", "--max-tokens", "2", "--", "--help")  # a question like any other
    assert asked.returncode == 0, asked.stderr
    to_nowhere = ("trace", "last", "--jaeger", "/nowhere/file")
    for arguments in (("journey", "req_unknown"), ("logs", "nobody"), ("ask", " "), to_nowhere):
        refused = command(stack.folder.path, *arguments)
        assert refused.returncode == 1
        assert refused.stderr.startswith("tokenpath: ")
        assert refused.stderr.count("\n") == 1


def test_commands_without_a_stack_say_how_to_start_one(tmp_path: Path) -> None:
    for arguments in (("ask", "Hello!"), ("status",)):
        refused = command(tmp_path, *arguments)
        assert refused.returncode == 1
        assert refused.stderr.startswith("tokenpath: no stack runs in this folder")
    assert command(tmp_path, "down").returncode == 0


def test_down_ends_every_process_and_frees_every_port(tmp_path: Path, stack: RunningStack) -> None:
    """Also: a process that was killed makes the stack incomplete, and the next `up` starts all of it again.
    The other test's stack, in another folder, runs beside it and is not touched."""
    with running_stack(tmp_path) as first:
        first.kill("decode-0")
        wait_for(lambda: not first.process("decode-0").alive)
        assert command(first.folder.path, "status").returncode == 1
        again = command(first.folder.path, "up")
        assert again.returncode == 0, again.stderr
        assert "decode-0 has ended" in again.stdout
        second = records.load(first.folder.record)
        assert second is not None
        assert second.api_key == first.api_key
        down = command(first.folder.path, "down")
        assert down.returncode == 0, down.stderr
        assert_nothing_left(first.record)
        assert_nothing_left(second)
    assert all(process.alive for process in stack.record.processes)


def test_a_service_that_can_not_start_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(StackError, match=r"(?s)decode-0 ended with status \d\n.*TOKENPATH_DECODE_NO_SUCH"):  # noqa: SIM117
        with running_stack(tmp_path, env={"TOKENPATH_DECODE_NO_SUCH": "1"}):
            pytest.fail("it started")
    assert not (tmp_path / ".tokenpath" / "stack.json").exists()


def test_an_interrupted_up_leaves_nothing(tmp_path: Path) -> None:
    up = subprocess.Popen(
        [sys.executable, "-m", "services.local.cli", "up"],
        env={**os.environ, "TOKENPATH_LOCAL_FOLDER": str(tmp_path), "TOKENPATH_LOCAL_ENGINE": "scripted"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    record_file = tmp_path / "stack.json"
    wait_for(lambda: record_file.exists() and "prefill-0" in record_file.read_text())
    record = records.load(record_file)
    assert record is not None
    up.send_signal(signal.SIGINT)
    _, said = up.communicate(timeout=30)
    assert up.returncode == 130, said
    assert_nothing_left(record)
    assert processes_of(tmp_path) == []
    assert not record_file.exists()


def test_a_half_started_stack_is_ended_by_down(tmp_path: Path) -> None:
    up = subprocess.Popen(
        [sys.executable, "-m", "services.local.cli", "up"],
        env={**os.environ, "TOKENPATH_LOCAL_FOLDER": str(tmp_path), "TOKENPATH_LOCAL_ENGINE": "scripted"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    record_file = tmp_path / "stack.json"
    wait_for(lambda: record_file.exists() and "auth" in record_file.read_text())
    busy = command(tmp_path, "up")
    assert busy.returncode == 1
    assert f"another command (pid {up.pid})" in busy.stderr
    up.kill()
    up.wait()
    record = records.load(record_file)
    assert record is not None
    assert not record.ready
    assert command(tmp_path, "down").returncode == 0
    assert_nothing_left(record)
