"""The whole stack for a test: the code of `make up`, in a folder of the test's own, on free ports.

    with running_stack(tmp_path, engine="scripted", decode=2, env={"TOKENPATH_DECODE_MAX_SEQS": "4"}) as stack:
        httpx.post(f"{stack.gateway_url}/v1/chat/completions", headers=stack.headers, ...)

A start takes seconds: share one stack between the tests that do not hurt it (`scope="module"` and
`tmp_path_factory`).
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from services.local import records
from services.local.config import PREFIX, StackConfig
from services.local.down import take_down
from services.local.folder import StackFolder
from services.local.plan import COLLECTOR, GATEWAY, ProcessPlan, make_plan
from services.local.records import ProcessRecord, StackRecord
from services.local.supervisor import Supervisor, stop
from services.local.up import bring_up

RESTART_S = 60.0


@dataclass
class RunningStack:
    """A stack that serves. `record` follows restarts."""

    folder: StackFolder
    config: StackConfig
    environment: Mapping[str, str]
    record: StackRecord

    @property
    def gateway_url(self) -> str:
        return self.record.urls["gateway"]

    @property
    def state_url(self) -> str:
        return self.record.urls["state"]

    @property
    def kv_url(self) -> str:
        return self.record.urls["kv"]

    @property
    def collector_url(self) -> str:
        """Of `/traces` and `/traces/{trace id or request id}`; KeyError when OTEL_EXPORTER_OTLP_ENDPOINT was given."""
        return self.record.urls["collector"]

    @property
    def api_key(self) -> str:
        return self.record.api_key

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.api_key}"}

    def process(self, name: str) -> ProcessRecord:
        """`decode-0`, `gateway`, `redis-state`, ...: `.pid`, `.ports`, `.alive`."""
        return self.record.process(name)

    def address(self, name: str) -> str:
        """host:port of a service's gRPC side."""
        return f"127.0.0.1:{self.process(name).ports['grpc']}"

    def metrics_url(self, name: str) -> str:
        """Where a service shows its Prometheus metrics."""
        ports = self.process(name).ports
        return f"http://127.0.0.1:{ports.get('metrics') or ports['http']}/metrics"

    def logs(self, name: str) -> str:
        """Everything that a process has written so far."""
        return self.folder.log(name).read_text(errors="replace")

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to one process."""
        os.kill(self.process(name).pid, number)

    def stop(self, *names: str) -> None:
        """End processes as `make down` does, and wait until they have ended."""
        stop([self.process(name) for name in names], print)
        for name in names:
            _reap(self.process(name).pid)

    def start(self, *names: str, settings: Mapping[str, str] | None = None) -> None:
        """Start ended processes again, on their old ports, and wait until they serve. `settings` are environment
        variables of this start only; they rule over everything else."""
        supervisor = Supervisor(self.folder, self.record, self.environment)
        plans = [self._plan(name) for name in names]
        plans = [replace(plan, wiring={**plan.wiring, **(settings or {})}) for plan in plans]
        for plan in plans:
            supervisor.start(plan)
        supervisor.wait_until_serving(plans, RESTART_S, print)
        self.record = supervisor.record

    def restart(self, *names: str, settings: Mapping[str, str] | None = None) -> None:
        """Stop and start, see there."""
        self.stop(*names)
        self.start(*names, settings=settings)

    def _plan(self, name: str) -> ProcessPlan:
        ports: dict[str, int] = {}
        for process in self.record.processes:
            for kind, port in process.ports.items():
                main = {GATEWAY: "http", COLLECTOR: "otlp"}.get(process.name, "grpc")
                ports[process.name if kind in (main, "redis") else f"{process.name}.{kind}"] = port
        plan = make_plan(self.config, ports, self.folder, self.environment)
        return next(process for process in plan.processes if process.name == name)


@contextmanager
def running_stack(
    tmp_path: Path,
    *,
    engine: str = "scripted",
    prefill: int = 1,
    decode: int = 1,
    env: Mapping[str, str] | None = None,
) -> Iterator[RunningStack]:
    """A stack that serves while the block runs. `env` holds settings of services and `TOKENPATH_LOCAL_*`."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("TOKENPATH_", "OTEL_"))}
    chosen = {
        f"{PREFIX}ENGINE": engine,
        f"{PREFIX}PREFILL": str(prefill),
        f"{PREFIX}DECODE": str(decode),
        f"{PREFIX}GATEWAY_PORT": str(_free_port()),
    }
    environment = {**inherited, **chosen, **(env or {})}
    config = StackConfig.from_env(environment)
    folder = StackFolder(tmp_path / ".tokenpath")
    record, _ = bring_up(folder, config, environment, print)
    try:
        yield RunningStack(folder, config, environment, record)
    finally:
        ended = records.load(folder.record)
        take_down(folder, print)
        for process in ended.processes if ended else ():
            _reap(process.pid)


def _reap(pid: int) -> None:
    # `make up` leaves its processes to init; here they are children of the test run.
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
