"""Before a number is believed: the harness measures a stub whose times are known, over a real socket."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtest.measure import Measurement, measure
from loadtest.records import read_records
from loadtest.sse_client import SseClient

ROOT = Path(__file__).resolve().parents[2]
SCALE = 0.1  # of the case's seconds: 0.1 s where it says 1 s
TOLERANCE_S = 0.05
TIMES = {"role_s": 0.1 * SCALE, "first_s": 1.0 * SCALE, "gap_s": 0.5 * SCALE, "tokens": 3, "end_s": 3.0 * SCALE}


@pytest.fixture(scope="module")
def stub_url() -> Iterator[str]:
    process = subprocess.Popen([sys.executable, "-m", "loadtest.stub"], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(10)


def ask(client: SseClient, **script: object) -> Measurement:
    return measure(client.post("/v1/chat/completions", {"stub": script}, {}))


@pytest.fixture
def client(stub_url: str) -> Iterator[SseClient]:
    client = SseClient(stub_url, timeout_s=10)
    yield client
    client.close()


def test_b101_ttft_and_e2e_are_those_of_the_text(client):
    result = ask(client, **TIMES)
    assert result.ok
    assert result.headers_s < TIMES["first_s"] / 2
    assert result.ttft_s == pytest.approx(1.0 * SCALE, abs=TOLERANCE_S)
    assert result.e2e_s == pytest.approx(2.0 * SCALE, abs=TOLERANCE_S)  # the last text, not the end of the stream
    assert result.tpot_s == pytest.approx(0.5 * SCALE, abs=TOLERANCE_S)
    assert result.itl_s == pytest.approx((0.5 * SCALE, 0.5 * SCALE), abs=TOLERANCE_S)


def test_b101_a_cut_stream_and_an_error_event_are_failures_with_status_200(client):
    cut = ask(client, **TIMES, ending="cut")
    assert cut.status == 200
    assert cut.failure.startswith("stream cut")
    failed = ask(client, **TIMES, ending="error")
    assert failed.failure == "error event worker_failed"


def test_a_refusal_and_a_dead_server_are_failures(client):
    assert ask(client, ending="refused").failure == "HTTP 429 queue_full"
    unreachable = SseClient("http://127.0.0.1:1")
    assert ask(unreachable).failure.startswith("no answer: ConnectionRefusedError")


def test_a_connection_is_used_again(client):
    assert ask(client, tokens=2).ok
    socket = client._connection.sock
    assert ask(client, tokens=2).ok
    assert client._connection.sock is socket


def locust(stub_url: str, folder: Path, script: str, users: int, *options: str) -> subprocess.Popen[str]:
    """Locust with chat users that ask the stub for answers after `script`, without a pause; records in `folder`."""
    file = folder / "users.py"
    file.write_text(
        "from loadtest import locustfile\n"
        "class StubUser(locustfile.ChatUser):\n"
        "    def _body(self):\n"
        f"        return {{'stub': {script}}}\n"
    )
    command = [sys.executable, "-m", "locust", "-f", str(file), "-H", stub_url, "--headless", "--only-summary"]
    command += ["--users", str(users), "--spawn-rate", "50", "--stop-timeout", "5", *options]
    environment = {"TOKENPATH_LOAD_THINK_S": "0", "TOKENPATH_LOAD_RECORDS": str(folder / "requests.jsonl")}
    return subprocess.Popen(
        command,
        env={**os.environ, **environment, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_b100_fifty_users_wait_side_by_side_and_the_run_ends_on_time(stub_url, tmp_path):
    """A hundred-millisecond answer to 50 users without a pause: hundreds of requests in 3 s, not thirty."""
    started = time.monotonic()
    run = locust(stub_url, tmp_path, "{'first_s': 0.1, 'end_s': 0.1, 'tokens': 1}", 50, "--run-time", "3s")
    said, _ = run.communicate(timeout=40)
    assert run.returncode == 0, said
    assert time.monotonic() - started < 30
    results = read_records((tmp_path / "requests.jsonl").read_text().splitlines())
    assert all(record.measurement.ok for record in results)
    assert len(results) > 150  # 1,500 on an idle machine; one after the other they would be 30
    assert max(record.sent_s for record in results) > 2.5  # start-up doesn't count
    assert "TTFT" in said


def test_an_interrupted_run_keeps_what_it_measured_and_the_answer_that_still_ran(stub_url, tmp_path):
    run = locust(stub_url, tmp_path, "{'first_s': 0.6, 'end_s': 0.6, 'tokens': 1}", 1)
    records = tmp_path / "requests.jsonl"
    deadline = time.monotonic() + 20
    while not (records.exists() and records.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    run.send_signal(signal.SIGINT)  # the second answer has begun: a user doesn't pause
    said, _ = run.communicate(timeout=20)
    assert run.returncode == 0, said
    assert "Traceback" not in said
    results = read_records(records.read_text().splitlines())
    assert len(results) == 2
    assert all(record.measurement.ok for record in results)
