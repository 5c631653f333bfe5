"""`make bench-hops`: what the services themselves cost, with an engine that costs nothing.

Starts a private stack with the scripted engine, measures it and one plain gRPC hop beside it, prints a table and
writes build/bench/hops.json. `--mode aggregated` (or MODE=aggregated) measures the path without a prefill worker.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from loadtest.hops.figures import Figures
from loadtest.hops.machine import machine
from loadtest.hops.phases import STEADY, TTFT_PAUSED, Phases
from loadtest.hops.reference import measure_hop
from loadtest.hops.stack import bench_stack
from loadtest.hops.table import table
from services.local.errors import StackError

OUTPUT = Path(__file__).resolve().parent.parent / "build" / "bench" / "hops.json"
CLIENTS = (1, 32)


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench-hops", description="Measure what the services themselves cost.")
    default = os.environ.get("MODE") or "disaggregated"
    parser.add_argument("--mode", choices=("disaggregated", "aggregated"), default=default)
    mode = parser.parse_args().mode
    try:
        figures = _measure(mode)
    except (StackError, RuntimeError) as error:
        print(f"bench-hops: {error}", file=sys.stderr)
        return 1
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(figures.to_json())
    print(table(figures))
    print(f"\nwritten to {OUTPUT.relative_to(OUTPUT.parents[2])}")
    return 0


def _measure(mode: str) -> Figures:
    facts = machine()
    with bench_stack(mode) as stack:
        phases = Phases(stack)
        return Figures(
            mode=mode,
            machine=facts,
            reference=measure_hop(),
            ttft=phases.ttft(),
            ttft_after_pause=phases.ttft(TTFT_PAUSED),
            tokens=[phases.tokens(clients) for clients in CLIENTS],
            fast=phases.throughput(),
            steady=phases.throughput(STEADY),
        )


if __name__ == "__main__":
    sys.exit(main())
