"""`make bench-hops`: what the services themselves cost, with an engine that costs nothing.

Starts a private stack with the scripted engine, measures it and one plain gRPC hop beside it, prints a table and
writes build/bench/hops.json. `--mode aggregated` (or MODE=aggregated) measures the path without a prefill worker.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from loadtest.hops.machine import Machine, machine
from loadtest.hops.phases import Phases, Throughput, TokenCost, TtftCost
from loadtest.hops.reference import HopCost, measure_hop
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
    facts = machine()
    try:
        with bench_stack(mode) as stack:
            phases = Phases(stack)
            ttft = phases.ttft()
            tokens = [phases.tokens(clients) for clients in CLIENTS]
            fast = phases.throughput()
        hop = measure_hop()
    except (StackError, RuntimeError) as error:
        print(f"bench-hops: {error}", file=sys.stderr)
        return 1
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(json.dumps(_json(mode, facts, hop, ttft, tokens, fast), indent=2) + "\n")
    print(table(facts, hop, ttft, tokens, fast))
    print(f"\nwritten to {OUTPUT.relative_to(OUTPUT.parents[2])}")
    return 0


def _json(
    mode: str, facts: Machine, hop: HopCost, ttft: TtftCost, tokens: Sequence[TokenCost], fast: Throughput
) -> dict[str, object]:
    return {
        "ttft_added_ms_p50": ttft.added_ms_p50,
        "ttft_added_ms_p99": ttft.added_ms_p99,
        "streamed_tokens_per_s": fast.tokens_per_s,
        "cpu_us_per_token": fast.cpu_us_per_token,
        "token_added_ms": [asdict(cost) for cost in tokens],
        "throughput": asdict(fast),
        "ttft": asdict(ttft),
        "reference": asdict(hop),
        "mode": mode,
        "machine": asdict(facts),
    }


if __name__ == "__main__":
    sys.exit(main())
