"""The policies on a public trace of real conversations, against an independent replay's figures."""

import json
import os
from collections import OrderedDict
from pathlib import Path

import pytest

from services.platform.fleet import WorkerRecord
from services.router.policies.base import Policy, RouteInputs, WorkerView
from services.router.policies.prefix_minus_load import PrefixMinusLoad
from services.router.policies.round_robin import RoundRobin
from services.router.prefix_index import PrefixIndex

TRACES = Path(os.environ.get("TOKENPATH_TRACES", Path(__file__).parents[3] / "shared" / "traces"))
TRACE = TRACES / "mooncake" / "conversation_trace.jsonl"
BLOCK_TOKENS = 512
REPLICAS = 4
BLOCKS = 2500  # a replica's cache


@pytest.fixture(scope="module")
def rows() -> list[tuple[int, list[int]]]:
    if not TRACE.exists():
        pytest.skip("the Mooncake conversation trace is not here; set TOKENPATH_TRACES to the folder of traces")
    with TRACE.open() as lines:
        return [(row["input_length"], row["hash_ids"]) for row in map(json.loads, lines)]


def replay(policy: Policy, rows: list[tuple[int, list[int]]]) -> tuple[float, float]:
    """(share of input tokens found in the cache of the chosen replica, most / mean computed tokens).

    Untimed: a replica's load is what it has computed more than the one that computed least. Caches are LRU.
    """
    workers = [
        WorkerRecord(f"w{i}", "g", "decode", "127.0.0.1:1", "m", "fp", BLOCK_TOKENS, BLOCKS, 64)
        for i in range(REPLICAS)
    ]
    index = PrefixIndex(REPLICAS * BLOCKS)
    caches: dict[str, OrderedDict[int, None]] = {worker.worker_id: OrderedDict() for worker in workers}
    computed = dict.fromkeys(caches, 0)
    hits = 0
    for number, (tokens, blocks) in enumerate(rows):
        match = index.match()
        match.feed(blocks)
        held = match.pages()
        least = min(computed.values())
        views = []
        for worker in workers:
            name = worker.worker_id
            cached = min(held.get(name, 0) * BLOCK_TOKENS, tokens)
            views.append(WorkerView(worker, cached, 0, computed[name] - least))
        chosen = policy.rank(RouteInputs(f"req_{number}", tokens, 1), views)[0]
        name, cache = chosen.worker.worker_id, caches[chosen.worker.worker_id]
        hits += chosen.view.cached_tokens
        computed[name] += tokens - chosen.view.cached_tokens
        for block in blocks:
            cache[block] = None
            cache.move_to_end(block)
        index.store(name, blocks)
        index.remove(name, [cache.popitem(last=False)[0] for _ in range(max(0, len(cache) - BLOCKS))])
    return hits / sum(tokens for tokens, _ in rows), max(computed.values()) * REPLICAS / sum(computed.values())


def test_prefix_minus_load_doubles_the_hits_of_round_robin_and_stays_balanced(
    rows: list[tuple[int, list[int]]],
) -> None:
    blind, blind_imbalance = replay(RoundRobin(), rows)
    aware, aware_imbalance = replay(PrefixMinusLoad(load_weight=2.0), rows)
    assert blind == pytest.approx(0.09, abs=0.01)
    assert blind_imbalance < 1.05
    assert aware > 0.18
    assert aware_imbalance < 1.02


def test_without_the_load_term_every_conversation_goes_to_one_replica(rows: list[tuple[int, list[int]]]) -> None:
    """All of the trace's requests share their first block."""
    hits, imbalance = replay(PrefixMinusLoad(load_weight=0.0), rows)
    assert imbalance == REPLICAS
    assert hits < 0.08
