"""Starting and ending processes, with small stand-ins for the services."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from services.local import records
from services.local.errors import StackError
from services.local.folder import StackFolder
from services.local.lock import stack_lock
from services.local.plan import ProcessPlan, Tier
from services.local.ports import internal_ports
from services.local.processes import start_mark
from services.local.records import StackRecord
from services.local.supervisor import Supervisor, stop

WEB_SERVER = "import http.server as h; h.HTTPServer(('127.0.0.1', {port}), h.SimpleHTTPRequestHandler).serve_forever()"
STUBBORN = """import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("deaf", flush=True)
time.sleep(60)"""


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    one = Supervisor(StackFolder(tmp_path), StackRecord({}, {}), dict(os.environ))
    yield one
    stop(one.record.processes, print, grace_s=0.2)


def plan(name: str, code: str, tier: Tier = Tier.SERVICES, port: int = 1) -> ProcessPlan:
    return ProcessPlan(name, (sys.executable, "-c", code), tier, {"http": port}, f"http://127.0.0.1:{port}/")


def wait_for(condition: Callable[[], object], timeout_s: float = 5.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.02)


def test_a_started_process_serves_in_a_session_of_its_own_and_is_on_record(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    port = internal_ports(["web"], tmp_path)["web"]
    web = plan("web", WEB_SERVER.format(port=port), port=port)
    process = supervisor.start(web)
    supervisor.wait_until_serving([web], 10, print)
    assert os.getsid(process.pid) == process.pid != os.getsid(0)
    recorded = records.load(supervisor.folder.record)
    assert recorded is not None
    assert recorded.processes == (process,)
    assert not recorded.ready
    stop(recorded.processes, print)
    assert not process.alive


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_between_start_and_record_waits_for_the_record(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    def interrupted(pid: int) -> str | None:
        signal.raise_signal(number)
        return start_mark(pid)

    def end(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("services.local.supervisor.start_mark", interrupted)
    before = signal.signal(signal.SIGTERM, end)
    try:
        with pytest.raises(KeyboardInterrupt):
            supervisor.start(plan("late", "import time; time.sleep(60)"))
        assert signal.getsignal(signal.SIGTERM) is end
    finally:
        signal.signal(signal.SIGTERM, before)
    recorded = records.load(supervisor.folder.record)
    assert recorded is not None
    assert [process.name for process in recorded.processes if process.alive] == ["late"]


def test_a_process_that_ends_is_named_with_its_status_and_its_last_words(supervisor: Supervisor) -> None:
    broken = plan("broken", "import sys; print('no model here'); sys.exit(3)")
    supervisor.start(broken)
    with pytest.raises(StackError, match=r"broken ended with status 3\n.*broken.log:\n.*no model here"):
        supervisor.wait_until_serving([broken], 10, print)


def test_a_process_that_does_not_serve_in_time_is_named(supervisor: Supervisor) -> None:
    silent = plan("silent", "import time; print('thinking', flush=True); time.sleep(60)")
    supervisor.start(silent)
    wait_for(lambda: "thinking" in supervisor.folder.log("silent").read_text())
    with pytest.raises(StackError, match=r"silent does not serve after 0 s\n.*\n.*thinking"):
        supervisor.wait_until_serving([silent], 0.2, print)


def test_a_program_that_is_not_there_is_named(supervisor: Supervisor) -> None:
    with pytest.raises(StackError, match="ghost can't be started"):
        supervisor.start(replace(plan("ghost", ""), command=("/nowhere/ghost",)))


def test_the_gateway_ends_before_the_services_and_the_stores_last(supervisor: Supervisor, tmp_path: Path) -> None:
    order = tmp_path / "order"
    code = (
        "import signal, sys, time\n"
        f"signal.signal(signal.SIGTERM, lambda *_: (open({str(order)!r}, 'a').write('NAME '), sys.exit()))\n"
        "print('ready', flush=True); time.sleep(60)"
    )
    tiers = {"store": Tier.STORES, "service": Tier.SERVICES, "gateway": Tier.GATEWAY}
    for name, tier in tiers.items():
        supervisor.start(plan(name, code.replace("NAME", name), tier))
        wait_for(lambda name=name: "ready" in supervisor.folder.log(name).read_text())
    stop(supervisor.record.processes, print)
    assert order.read_text().split() == ["gateway", "service", "store"]


def test_a_process_that_ignores_sigterm_is_killed_after_the_grace(supervisor: Supervisor) -> None:
    process = supervisor.start(plan("stubborn", STUBBORN))
    wait_for(lambda: "deaf" in supervisor.folder.log("stubborn").read_text())
    said: list[str] = []
    stop(supervisor.record.processes, said.append, grace_s=0.3)
    assert not process.alive
    assert "stubborn" in said[0]
    assert "killed" in said[0]


def test_a_pid_that_belongs_to_another_program_now_is_left_alone(supervisor: Supervisor) -> None:
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        ours = supervisor.start(plan("ours", "import time; time.sleep(60)"))
        stale = replace(ours, name="stale", pid=stranger.pid, mark="an earlier moment")
        said: list[str] = []
        stop([stale], said.append)
        assert stranger.poll() is None
        assert said == [f"stale: pid {stranger.pid} belongs to another program now, left alone"]
    finally:
        stranger.kill()
        stranger.wait()


def test_a_zombie_counts_as_ended() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert start_mark(child.pid) is None
    child.wait()


def test_a_killed_process_ends_with_its_signals_name(supervisor: Supervisor) -> None:
    victim = plan("victim", "import time; time.sleep(60)")
    process = supervisor.start(victim)
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(StackError, match="victim ended with signal SIGKILL"):
        supervisor.wait_until_serving([victim], 10, print)


def test_only_one_command_at_a_time_changes_a_stack(tmp_path: Path) -> None:
    with stack_lock(tmp_path / "lock"):  # noqa: SIM117
        with pytest.raises(StackError, match=f"another command \\(pid {os.getpid()}\\)"), stack_lock(tmp_path / "lock"):
            pass
    with stack_lock(tmp_path / "lock"):
        pass


def test_a_record_that_is_not_ours_is_an_error_and_its_secret_is_the_owners(tmp_path: Path) -> None:
    path = tmp_path / "stack.json"
    records.save(StackRecord({"gateway": "http://127.0.0.1:1"}, {}, api_key="tp-1"), path)
    assert path.stat().st_mode & 0o077 == 0
    path.write_text('{"version": 99}')
    with pytest.raises(StackError, match="can't be read"):
        records.load(path)
