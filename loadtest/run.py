"""`make load`: run the virtual users against a gateway and say what came out.

USERS, SPAWN (users started a second) and TIME (e.g. 30s, 2m) say how much, or the options of the same names; WEB=1
opens Locust's page instead, where the same is chosen by hand. Results are in build/load/: report.html, load_*.csv,
requests.jsonl, summary.json.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from loadtest.models import NotServing, served_model
from loadtest.options import load_options
from loadtest.records import read_records
from loadtest.report import to_json, to_table
from loadtest.summary import Slo, summarise
from loadtest.target import NoTarget, Target, find_target

ROOT = Path(__file__).resolve().parent.parent
OUTPUT = ROOT / "build" / "load"
WEB_HOST = "127.0.0.1"
STOP_S = 60  # how long running requests may take to end after TIME is over


def main() -> int:
    """0: every request succeeded; 1: some failed; 2: nothing could be measured."""
    chosen = _arguments(os.environ)
    try:
        target = find_target(os.environ, ROOT)
        served_model(target.url, target.api_key)
    except (NoTarget, NotServing) as error:
        print(f"load: {error}", file=sys.stderr)
        return 2
    OUTPUT.mkdir(parents=True, exist_ok=True)
    records = OUTPUT / "requests.jsonl"
    records.unlink(missing_ok=True)
    command = _web_command(target, chosen.web_port) if chosen.web else _headless_command(target, chosen)
    page = f"Locust's page is at http://{WEB_HOST}:{chosen.web_port}; Ctrl-C ends it and shows what was measured"
    print(f"load: {target.url}, {page if chosen.web else _amount(chosen)}", flush=True)
    interrupt = Interrupt()
    signal.signal(signal.SIGINT, interrupt)
    ended = subprocess.run(command, cwd=ROOT, env=_environment(target, records), stdin=subprocess.DEVNULL, check=False)
    if ended.returncode not in (0, 1) or not records.exists():
        print(f"load: Locust ended with status {ended.returncode}; its message is above", file=sys.stderr)
        return 2
    if interrupt.came and not chosen.web:
        print("interrupted: this is what was measured until then")
    return _report(records)


class Interrupt:
    """Ctrl-C is for Locust, which shares the terminal; what it measured until then is still reported."""

    def __init__(self) -> None:
        self.came = False

    def __call__(self, *_: object) -> None:
        if not self.came:
            os.write(2, b"\nload: waiting for the answers that still run (Ctrl-C again: without them)\n")
        self.came = True


def _amount(chosen: argparse.Namespace) -> str:
    return f"{chosen.users} users for {chosen.time}"


def _report(records: Path) -> int:
    options = load_options()
    slo = Slo(options.slo_ttft_ms, options.slo_tpot_ms, options.slo_e2e_ms)
    try:
        summary = summarise(read_records(records.read_text().splitlines()), slo)
    except ValueError as error:
        print(f"load: {error}", file=sys.stderr)
        return 2
    (OUTPUT / "summary.json").write_text(to_json(summary))
    print(to_table(summary))
    print(f"files in {OUTPUT.relative_to(ROOT)}: " + ", ".join(sorted(path.name for path in OUTPUT.iterdir())))
    return 1 if summary.failed else 0


def _arguments(environment: Mapping[str, str]) -> argparse.Namespace:
    def default(name: str, value: str) -> str:
        return environment.get(name) or value

    parser = argparse.ArgumentParser(prog="load", description="Load a gateway with chat users and measure it.")
    parser.add_argument("--users", type=int, default=default("USERS", "4"), help="how many at a time (USERS)")
    parser.add_argument("--spawn", type=float, default=default("SPAWN", "2"), help="users started a second (SPAWN)")
    parser.add_argument("--time", default=default("TIME", "30s"), help="such as 30s or 2m (TIME)")
    web = environment.get("WEB", "") not in ("", "0")
    parser.add_argument("--web", action="store_true", default=web, help="Locust's page instead of a run (WEB=1)")
    parser.add_argument("--web-port", type=int, default=default("WEB_PORT", "8089"), help="its port (WEB_PORT)")
    return parser.parse_args()


def _headless_command(target: Target, chosen: argparse.Namespace) -> list[str]:
    amount = ["--users", str(chosen.users), "--spawn-rate", str(chosen.spawn), "--run-time", chosen.time]
    return [*_locust(target), "--headless", "--only-summary", *amount, "--stop-timeout", str(STOP_S)]


def _web_command(target: Target, port: int) -> list[str]:
    return [*_locust(target), "--web-host", WEB_HOST, "--web-port", str(port)]


def _locust(target: Target) -> list[str]:
    files = ["--html", str(OUTPUT / "report.html"), "--csv", str(OUTPUT / "load")]
    # Without Locust's own log there are only warnings, errors, and our summary.
    own = ["-f", str(ROOT / "loadtest" / "locustfile.py"), "-H", target.url, "--skip-log-setup"]
    return [sys.executable, "-m", "locust", *own, *files]


def _environment(target: Target, records: Path) -> dict[str, str]:
    own = {"PYTHONPATH": str(ROOT), "TOKENPATH_LOAD_RECORDS": str(records)}
    return {"TOKENPATH_LOAD_API_KEY": target.api_key, **os.environ, **own}


if __name__ == "__main__":
    sys.exit(main())
