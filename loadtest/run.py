"""`make load`: run the virtual users against a gateway and say what came out.

USERS, SPAWN (users started a second) and TIME (e.g. 30s, 2m) say how much; WEB=1 opens Locust's page instead,
where the same is chosen by hand. Results are in build/load/: report.html, load_*.csv, requests.jsonl, summary.json.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

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
    try:
        target = find_target(os.environ, ROOT)
    except NoTarget as error:
        print(f"load: {error}", file=sys.stderr)
        return 2
    OUTPUT.mkdir(parents=True, exist_ok=True)
    records = OUTPUT / "requests.jsonl"
    records.unlink(missing_ok=True)
    web = os.environ.get("WEB", "") not in ("", "0")
    command = _web_command(target) if web else _headless_command(target, os.environ)
    print(f"load: {target.url}" + (f", Locust's page at http://{WEB_HOST}:{_web_port()}" if web else ""), flush=True)
    ended = subprocess.run(command, cwd=ROOT, env=_environment(target, records), check=False)
    if ended.returncode not in (0, 1) or not records.exists():
        print(f"load: Locust ended with status {ended.returncode}; its message is above", file=sys.stderr)
        return 2
    return _report(records)


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


def _headless_command(target: Target, environment: Mapping[str, str]) -> list[str]:
    return [
        *_locust(target),
        "--headless",
        "--only-summary",
        "--users",
        environment.get("USERS") or "4",
        "--spawn-rate",
        environment.get("SPAWN") or "2",
        "--run-time",
        environment.get("TIME") or "30s",
        "--stop-timeout",
        str(STOP_S),
    ]


def _web_command(target: Target) -> list[str]:
    return [*_locust(target), "--web-host", WEB_HOST, "--web-port", _web_port()]


def _locust(target: Target) -> list[str]:
    files = ["--html", str(OUTPUT / "report.html"), "--csv", str(OUTPUT / "load")]
    return [sys.executable, "-m", "locust", "-f", str(ROOT / "loadtest" / "locustfile.py"), "-H", target.url, *files]


def _environment(target: Target, records: Path) -> dict[str, str]:
    own = {"TOKENPATH_LOAD_API_KEY": target.api_key, "TOKENPATH_LOAD_RECORDS": str(records)}
    return {**own, **os.environ, "PYTHONPATH": str(ROOT), "TOKENPATH_LOAD_RECORDS": str(records)}


def _web_port() -> str:
    return os.environ.get("WEB_PORT") or "8089"


if __name__ == "__main__":
    sys.exit(main())
