from collections import Counter

import pytest

from services.platform.fleet import WorkerRecord
from services.platform.settings import SettingsError, load_settings
from services.router.policies.base import RouteInputs, WorkerView
from services.router.policies.prefix_minus_load import PrefixMinusLoad
from services.router.policies.registry import POLICIES, PolicyOptions, make_policy
from services.router.policies.round_robin import RoundRobin
from services.router.settings import RouterSettings


def worker(name: str, **changes: int) -> WorkerRecord:
    sizes = {"block_size": 16, "kv_blocks": 100, "max_num_seqs": 8} | changes
    return WorkerRecord(name, "g", "decode", "127.0.0.1:1", "m", "fp", **sizes)


def inputs(request: int = 0, prompt_tokens: int = 100) -> RouteInputs:
    return RouteInputs(f"req_{request}", prompt_tokens, 10)


def test_round_robin_gives_each_worker_the_same_share_in_any_listing_order() -> None:
    policy = RoundRobin()
    views = [WorkerView(worker(name)) for name in ("a", "b", "c")]
    chosen = []
    for request in range(30):
        views = views[1:] + views[:1]
        chosen.append(policy.rank(inputs(request), views)[0].worker.worker_id)
    assert Counter(chosen) == {"a": 10, "b": 10, "c": 10}
    assert chosen[:3] == ["a", "b", "c"]


def test_round_robin_ranks_all_workers_from_the_one_whose_turn_it_is() -> None:
    policy = RoundRobin()
    views = [WorkerView(worker(name)) for name in ("a", "b", "c")]
    policy.rank(inputs(), views)
    ranked = policy.rank(inputs(), views)
    assert [(one.worker.worker_id, one.score) for one in ranked] == [("b", 0), ("c", -1), ("a", -2)]
    assert policy.rank(inputs(), []) == []


def test_prefix_minus_load_prefers_the_warm_worker_until_it_is_loaded() -> None:
    policy = PrefixMinusLoad(load_weight=1.0)
    cold = WorkerView(worker("cold"))
    for sequences, best in ((0, "warm"), (3, "warm"), (5, "cold"), (8, "cold")):
        warm = WorkerView(worker("warm"), cached_tokens=50, sequences=sequences)
        assert policy.rank(inputs(), [cold, warm])[0].worker.worker_id == best, f"{sequences} sequences of 8"


def test_load_counts_whichever_runs_out_first() -> None:
    assert WorkerView(worker("a"), sequences=4, tokens=160).load == 0.5  # 4 of 8 sequences, 160 of 1600 tokens
    assert WorkerView(worker("a"), sequences=1, tokens=1200).load == 0.75
    assert WorkerView(worker("a"), sequences=16).load == 2.0  # a queue
    assert WorkerView(WorkerRecord("x", "g", "decode", "a:1"), sequences=1).load == 1.0  # says nothing of its size


def test_every_term_is_reported_and_they_add_up_to_the_score() -> None:
    views = [WorkerView(worker("a"), cached_tokens=40, sequences=2), WorkerView(worker("b"), tokens=800)]
    for name in POLICIES:
        for one in make_policy(name, PolicyOptions(load_weight=2.0)).rank(inputs(), views):
            if name == "prefix_minus_load":
                assert one.score == pytest.approx(sum(value for _, value in one.terms))
                assert [term for term, _ in one.terms] == ["prefix", "load"]
            assert one.terms


def test_ties_are_broken_the_same_for_one_request_and_evenly_over_many() -> None:
    policy = PrefixMinusLoad(load_weight=1.0)
    views = [WorkerView(worker(f"w{i}")) for i in range(4)]
    first = [policy.rank(inputs(request), views)[0].worker.worker_id for request in range(400)]
    again = [policy.rank(inputs(request), views[::-1])[0].worker.worker_id for request in range(400)]
    assert first == again
    assert set(Counter(first)) == {"w0", "w1", "w2", "w3"}
    assert min(Counter(first).values()) > 60


def test_an_unknown_policy_is_a_settings_error_that_lists_the_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENPATH_ROUTER_POLICY", "fastest")
    with pytest.raises(SettingsError, match=r"TOKENPATH_ROUTER_POLICY.*'fastest'.*prefix_minus_load, round_robin"):
        load_settings(RouterSettings)
