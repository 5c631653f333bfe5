"""All figures of one run of the bench, and the JSON that keeps them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from loadtest.hops.machine import Machine
from loadtest.hops.phases import Throughput, TokenCost, TtftCost
from loadtest.hops.reference import HopCost


@dataclass(frozen=True)
class Figures:
    mode: str
    machine: Machine
    reference: HopCost
    ttft: TtftCost  # the engine answers at once
    ttft_after_pause: TtftCost  # the services have been idle while the engine took its time
    tokens: list[TokenCost]
    fast: Throughput
    steady: Throughput  # below the limit, so every token travels in messages of its own

    def to_json(self) -> str:
        headline = {
            "ttft_added_ms_p50": self.ttft.added_ms_p50,
            "ttft_added_ms_p99": self.ttft.added_ms_p99,
            "streamed_tokens_per_s": self.fast.tokens_per_s,
            "cpu_us_per_token": self.steady.cpu_us_per_token,
        }
        return json.dumps({**headline, **asdict(self)}, indent=2) + "\n"
