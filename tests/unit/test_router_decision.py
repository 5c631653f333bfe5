import asyncio
import time
from collections.abc import Iterable, Sequence
from itertools import pairwise

import grpc
import pytest

from services.kvcache.names import PageNamer, block_hash
from services.platform.failures import Failure
from services.platform.fleet import WorkerRecord
from services.router.decision import Ask, Decider, Mode
from services.router.load_view import LoadView
from services.router.policies.base import RouteInputs
from services.router.policies.prefix_minus_load import PrefixMinusLoad
from services.router.prefix_index import PrefixIndex
from tests.eventually import eventually
from tokenpath.v1.router_pb2 import RouteRequest


def worker(name: str, fingerprint: str = "fp", **changes: int) -> WorkerRecord:
    sizes = {"block_size": 16, "kv_blocks": 4096, "max_num_seqs": 8} | changes
    return WorkerRecord(name, "g", name.split("-")[0], "127.0.0.1:1", "m", fingerprint, **sizes)


FLEET = [worker("prefill-0"), worker("prefill-1"), worker("decode-0"), worker("decode-1")]


class Router:
    def __init__(self, workers: Iterable[WorkerRecord], *, max_hashed_blocks: int = 8192) -> None:
        self.fleet = {one.worker_id: one for one in workers}
        self.index = PrefixIndex(1_000_000)
        self.loads = LoadView(5.0)
        self.decider = Decider(
            lambda: self.fleet,
            self.index,
            self.loads,
            {role: PrefixMinusLoad(1.0) for role in ("prefill", "decode")},
            default_mode=Mode.DISAGGREGATED,
            max_candidates=8,
            max_hashed_blocks=max_hashed_blocks,
        )

    def warm(self, name: str, token_ids: Sequence[int], salt: str = "s", fingerprint: str = "fp") -> None:
        self.index.store(name, [block_hash(page) for page in PageNamer(fingerprint, salt, 16).names(token_ids)])


def ask(
    token_ids: Sequence[int], *, salt: str = "s", mode: Mode | None = None, exclude: Iterable[str] = (), number: int = 0
) -> Ask:
    return Ask(RouteInputs(f"req_{number}", len(token_ids), 16), token_ids, salt, mode, frozenset(exclude))


async def test_the_pair_that_holds_the_prefix_goes_first_with_its_cached_tokens() -> None:
    router = Router(FLEET)
    prompt = list(range(100))
    router.warm("prefill-1", prompt[:64])
    router.warm("decode-0", prompt[:32])
    decision = await router.decider.decide(ask(prompt))
    best = decision.candidates[0]
    assert best.prefill is not None
    assert (best.prefill.worker_id, best.decode.worker_id) == ("prefill-1", "decode-0")
    assert decision.mode is Mode.DISAGGREGATED
    assert len(decision.candidates) == 4
    cached = {one.worker.worker_id: one.view.cached_tokens for one in decision.scores}
    assert cached == {"prefill-0": 0, "prefill-1": 64, "decode-0": 32, "decode-1": 0}


async def test_a_partly_filled_page_counts_for_nothing() -> None:
    router = Router(FLEET)
    prompt = list(range(30))
    router.warm("decode-0", prompt)
    decision = await router.decider.decide(ask(prompt, mode=Mode.AGGREGATED))
    assert {one.view.cached_tokens for one in decision.scores} == {16, 0}


async def test_b059_another_tenants_salt_finds_nothing() -> None:
    router = Router(FLEET)
    prompt = list(range(100))
    router.warm("prefill-1", prompt, salt="tenant-a")
    decision = await router.decider.decide(ask(prompt, salt="tenant-b"))
    assert all(one.view.cached_tokens == 0 for one in decision.scores)


async def test_each_fingerprint_is_looked_up_under_its_own_names() -> None:
    router = Router([worker("prefill-0", "new"), worker("prefill-1"), worker("decode-0", "new"), worker("decode-1")])
    prompt = list(range(64))
    router.warm("prefill-0", prompt, fingerprint="new")
    router.warm("prefill-1", prompt[:32])
    decision = await router.decider.decide(ask(prompt))
    pairs = [(pair.prefill.worker_id if pair.prefill else "", pair.decode.worker_id) for pair in decision.candidates]
    assert pairs == [("prefill-0", "decode-0"), ("prefill-1", "decode-1")]


async def test_requests_routed_within_one_step_spread_because_choices_are_booked() -> None:
    router = Router(FLEET)
    chosen = []
    for number in range(40):
        decision = await router.decider.decide(ask(list(range(100)), number=number))
        chosen.append(decision.candidates[0].decode.worker_id)
    assert all(first != second for first, second in zip(chosen[::2], chosen[1::2], strict=True))


async def test_without_a_prefill_worker_it_falls_back_to_aggregated_and_says_so() -> None:
    decision = await Router(FLEET[2:]).decider.decide(ask([1, 2, 3]))
    assert (decision.mode, decision.fallback) == (Mode.AGGREGATED, "no_prefill")
    assert all(pair.prefill is None for pair in decision.candidates)
    mismatch = Router([worker("prefill-0", "other"), worker("decode-0")])
    decision = await mismatch.decider.decide(ask([1, 2, 3], mode=Mode.DISAGGREGATED))
    assert (decision.mode, decision.fallback) == (Mode.AGGREGATED, "no_matching_prefill")


async def test_aggregated_mode_considers_decode_workers_only() -> None:
    decision = await Router(FLEET).decider.decide(ask([1], mode=Mode.AGGREGATED))
    assert (decision.mode, decision.fallback) == (Mode.AGGREGATED, "")
    assert {one.worker.role for one in decision.scores} == {"decode"}


async def test_b057_workers_that_failed_the_request_are_not_tried_again() -> None:
    router = Router(FLEET)
    decision = await router.decider.decide(ask([1], exclude=["prefill-0", "decode-1"]))
    assert {one.worker.worker_id for one in decision.scores} == {"prefill-1", "decode-0"}
    with pytest.raises(Failure, match="no other decode worker") as failed:
        await router.decider.decide(ask([1], exclude=["decode-0", "decode-1"]))
    assert failed.value.status is grpc.StatusCode.UNAVAILABLE


async def test_no_decode_worker_is_unavailable_with_advice() -> None:
    with pytest.raises(Failure, match="no decode worker is alive") as failed:
        await Router(FLEET[:2]).decider.decide(ask([1]))
    assert failed.value.status is grpc.StatusCode.UNAVAILABLE
    assert failed.value.code == "no_worker_available"
    assert failed.value.retry_after_ms > 0


async def test_a_prompt_too_long_for_every_worker_is_the_callers_fault() -> None:
    router = Router([worker("decode-0", max_model_len=64), worker("decode-1", max_model_len=128)])
    decision = await router.decider.decide(ask([0] * 100, mode=Mode.AGGREGATED))
    assert [pair.decode.worker_id for pair in decision.candidates] == ["decode-1"]
    with pytest.raises(Failure, match="128 tokens") as failed:
        await router.decider.decide(ask([0] * 128))
    assert (failed.value.status, failed.value.code) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "context_length_exceeded",
    )


async def test_b051_a_worker_without_connection_gets_nothing_while_another_answers() -> None:
    router = Router(FLEET)
    router.loads.lost(FLEET[2])
    decision = await router.decider.decide(ask([1]))
    assert {pair.decode.worker_id for pair in decision.candidates} == {"decode-1"}
    assert decision.unreachable == 1
    router.loads.lost(FLEET[3])  # nobody answers: then it may be our own view that is wrong
    decision = await router.decider.decide(ask([1]))
    assert {pair.decode.worker_id for pair in decision.candidates} == {"decode-0", "decode-1"}


async def test_an_8k_token_prompt_costs_less_than_3_ms_even_when_everything_is_cached() -> None:
    router = Router([worker(f"{role}-{i}") for role in ("prefill", "decode") for i in range(4)])
    prompt = RouteRequest(token_ids=range(8192)).token_ids
    for name in router.fleet:
        router.warm(name, list(prompt))
    times = []
    for number in range(20):
        started = time.perf_counter()
        decision = await router.decider.decide(ask(prompt, number=number))
        times.append(time.perf_counter() - started)
    assert decision.scores[0].view.cached_tokens == 8192
    assert min(times) < 0.003, f"{min(times) * 1000:.2f} ms"


async def test_a_4_million_token_prompt_does_not_block_the_loop() -> None:
    router = Router(FLEET, max_hashed_blocks=8192)
    prompt = RouteRequest(token_ids=[7] * 4_000_000).token_ids
    router.warm("decode-0", list(prompt[: 8192 * 16 + 500]))
    turns: list[float] = []

    async def heartbeat() -> None:
        while True:
            turns.append(time.perf_counter())
            await asyncio.sleep(0)

    beating = asyncio.create_task(heartbeat())
    await eventually(lambda: turns, "heartbeat runs")
    turns.clear()
    decision = await router.decider.decide(ask(prompt))
    beating.cancel()
    held = {one.worker.worker_id: one.view.cached_tokens for one in decision.scores}
    assert held["decode-0"] == 8192 * 16  # the rest is not looked up
    assert len(turns) >= 15
    longest = max(after - before for before, after in pairwise(turns))
    assert longest < 0.05, f"the loop stood still for {longest * 1000:.1f} ms"
