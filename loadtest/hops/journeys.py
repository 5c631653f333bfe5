"""What the stack itself says about the bench's requests: the parts of their TTFT, hop by hop."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from loadtest.hops.stack import BenchStack
from loadtest.percentiles import percentile

SETTLED_WITHIN_S = 5.0


def ttft_parts_ms(stack: BenchStack, answer_ids: Iterable[str]) -> dict[str, float]:
    """Median of each part of TTFT, by name, in the order in which the parts come. Their sum is near the median TTFT."""
    found: dict[str, list[float]] = defaultdict(list)
    for answer_id in answer_ids:
        for part in _journey(stack, answer_id)["ttft"]["parts"]:
            found[part["name"]].append(part["ms"])
    return {name: percentile(values, 50) or 0.0 for name, values in found.items()}


def _journey(stack: BenchStack, answer_id: str) -> dict[str, Any]:
    """A journey is there when its request has settled, which is after its last byte."""
    url = f"http://{stack.host}:{stack.port}/v1/journeys/{answer_id}"
    deadline = time.monotonic() + SETTLED_WITHIN_S
    while True:
        try:
            request = urllib.request.Request(url, headers=stack.authorization)
            with urllib.request.urlopen(request, timeout=SETTLED_WITHIN_S) as answer:
                return dict(json.load(answer))
        except urllib.error.HTTPError as error:
            if error.code != 404 or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
