from services.platform.fleet import WorkerRecord
from services.router.pairing import Pair, alone, pairs
from services.router.policies.base import Scored, WorkerView


def scored(name: str, score: float, fingerprint: str = "fp") -> Scored:
    return Scored(WorkerView(WorkerRecord(name, "g", name[0], "127.0.0.1:1", fingerprint=fingerprint)), score, ())


def names(found: list[Pair]) -> list[str]:
    return [f"{pair.prefill.worker_id if pair.prefill else '-'} {pair.decode.worker_id}" for pair in found]


def test_pairs_go_by_the_sum_of_both_scores_then_by_rank() -> None:
    prefill = [scored("p1", 0.9), scored("p2", 0.5)]
    decode = [scored("d1", 0.0), scored("d2", -0.4)]
    found = pairs(prefill, decode, limit=8)
    assert names(found) == ["p1 d1", "p1 d2", "p2 d1", "p2 d2"]
    assert found[0].score == 0.9
    assert names(pairs(prefill, decode, limit=2)) == ["p1 d1", "p1 d2"]


def test_b039_workers_of_different_fingerprints_are_never_paired() -> None:
    prefill = [scored("p1", 1.0, "old"), scored("p2", 0.5, "new"), scored("p3", 9.0, "other")]
    decode = [scored("d1", 1.0, "new"), scored("d2", 0.9, "old")]
    assert names(pairs(prefill, decode, limit=8)) == ["p1 d2", "p2 d1"]


def test_b039_a_worker_that_does_not_say_its_fingerprint_matches_none() -> None:
    assert pairs([scored("p1", 1.0, "")], [scored("d1", 1.0, "")], limit=8) == []


def test_without_prefill_the_decode_workers_stand_alone_in_their_order() -> None:
    assert names(alone([scored("d2", 0.3), scored("d1", 0.1), scored("d3", 0.0)], limit=2)) == ["- d2", "- d1"]
