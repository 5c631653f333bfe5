"""From a prefill to a decode worker over a real Redis: the text of one worker, whatever becomes of the pages."""

from __future__ import annotations

import asyncio
import json
import math
import signal
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from typing import Any

import grpc
import pytest
from redis.asyncio import Redis

from services.engine.fingerprint import kv_fingerprint
from services.engine.runner import KvLayout, ModelDescription
from services.platform.failures import Failure
from services.platform.redis import connect
from tests.eventually import eventually
from tests.integration.worker_harness import (
    DO_REMOTE_DECODE,
    TOKENIZER,
    Answer,
    WorkerClient,
    decode_worker,
    prefill_worker,
    request,
    script,
)
from tests.redis_server import RedisServer, redis_server

FILLING = "a filling that makes this prompt several pages long, so that there is something to hand over " * 3


def long_script(text: str, **keys: object) -> str:
    return FILLING + script(text, **keys)


PROMPT = long_script("The answer is forty-two, and then some more of it.")
PROMPT_TOKENS = len(TOKENIZER.encode(PROMPT, add_special_tokens=False))
PAGES = -(-PROMPT_TOKENS // 16)


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with redis_server() as running:
        yield running


@dataclass
class Pair:
    prefill: WorkerClient
    decode: WorkerClient
    redis: Redis

    async def prefilled(self, request_id: str, prompt: str = PROMPT, salt: str = "", **sampling: Any) -> Answer:
        wanted = request(request_id, prompt, transfer=DO_REMOTE_DECODE, **{**sampling, "max_tokens": 1})
        return await self.prefill.generate(wanted, salt)

    async def decoded(
        self, request_id: str, handoff: str, prompt: str = PROMPT, salt: str = "", **sampling: Any
    ) -> Answer:
        return await self.decode.generate(request(request_id, prompt, transfer=handoff, **sampling), salt)

    async def both(self, request_id: str, prompt: str = PROMPT, salt: str = "", **sampling: Any) -> Answer:
        handoff = (await self.prefilled(request_id, prompt, salt, **sampling)).handoff
        return await self.decoded(request_id, handoff, prompt, salt, **sampling)

    async def alone(self, prompt: str = PROMPT, **sampling: Any) -> Answer:
        """What one worker that does everything says."""
        return await self.decode.generate(request("alone", prompt, **sampling), salt="alone")

    def pages(self, result: str) -> float:
        return self.decode.metric("tokenpath_kv_pages_total", result=result)

    async def expired(self) -> None:
        """Redis says nothing when a key is gone."""
        while await self.page_keys():  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    async def page_keys(self) -> list[bytes]:
        return sorted(await self.redis.keys("tp:kv:*"))


@pytest.fixture
async def pair(server: RedisServer) -> AsyncIterator[Pair]:
    redis = connect(server.url)
    await redis.flushall()
    async with prefill_worker(kv_url=server.url) as prefill, decode_worker(kv_url=server.url, kv_wait_s=0.5) as decode:
        yield Pair(prefill, decode, redis)
    await redis.aclose()


async def test_two_workers_say_what_one_says(pair: Pair) -> None:
    alone = await pair.alone()
    handed = await pair.prefilled("R")
    descriptor = json.loads(handed.handoff)
    assert (descriptor["transport"], descriptor["pages"], descriptor["cached_tokens"]) == ("redis", PAGES, 0)
    assert descriptor["first"] == [
        {"index": 0, "token_id": alone.tokens[0][0], "logprob": None, "top": [], "finish": ""}
    ]
    keys = await pair.page_keys()
    assert len(keys) == PAGES
    assert all([0 < await pair.redis.pttl(key) <= 60_000 for key in keys])

    together = await pair.decoded("R", handed.handoff)
    assert together.tokens == alone.tokens
    assert together.completes[0].finish_reason == "stop"
    assert pair.pages("fetched") == PAGES
    assert together.note("kv_fetch", "recomputed_tokens") == "0"
    assert pair.decode.metric("vllm:prompt_tokens_total", model_name=TOKENIZER.name) == PROMPT_TOKENS  # of "alone"


async def test_stages_are_reported_and_their_parts_fit(pair: Pair) -> None:
    handed = await pair.prefilled("R")
    together = await pair.decoded("R", handed.handoff)
    reports = [*handed.reports, *together.reports]
    assert [report.stage for report in reports] == ["prefill", "kv_publish", "kv_fetch", "decode"]
    for report in reports:
        assert 0 < sum(part.duration_ns for part in report.parts) <= report.duration_ns or not report.parts
    assert [report.instance for report in reports[::2]] == [report.instance for report in reports[1::2]]
    prefill, publish, fetch, decode = reports
    assert prefill.tokens == PROMPT_TOKENS
    assert publish.bytes > fetch.bytes > 0
    assert decode.tokens == len(together.tokens[0]) - 1


async def test_choices_go_on_from_their_own_first_token(pair: Pair) -> None:
    prompt = FILLING + script(choices=[{"text": "a b c"}, {"text": "d"}, {"text": "", "finish": "stop"}])
    alone = await pair.alone(prompt, n=3)
    together = await pair.both("R", prompt, n=3, logprobs=1)
    assert together.tokens == alone.tokens
    assert {index: end.finish_reason for index, end in together.completes.items()} == dict.fromkeys(range(3), "stop")
    assert all(chunk.output_logprobs.token_ids == chunk.token_ids for chunk in together.chunks)


async def test_a_first_token_that_ends_the_answer_needs_no_pages(pair: Pair) -> None:
    prompt = long_script("word word word")
    one = await pair.both("one", prompt, max_tokens=1)
    assert (len(one.tokens[0]), one.completes[0].finish_reason) == (1, "length")
    first = one.tokens[0][0]
    stopped = await pair.both("stopped", prompt, stop_token_ids=[first])
    assert (stopped.tokens[0], stopped.completes[0].finish_reason) == ([first], "stop")
    assert not one.reports
    assert pair.pages("fetched") == pair.pages("hit") == 0


async def test_b044_cached_tokens_are_zero_when_cold_and_never_above_the_prompt(pair: Pair) -> None:
    cold = await pair.both("cold", max_tokens=5)
    warm = await pair.both("warm", max_tokens=5)
    full_pages = PROMPT_TOKENS // 16 * 16
    for answer, cached in ((cold, 0), (warm, full_pages)):
        assert {chunk.cached_tokens for chunk in answer.chunks} == {cached}
        assert (answer.completes[0].cached_tokens, answer.completes[0].completion_tokens) == (cached, 5)
        assert len(answer.tokens[0]) == 5
    assert pair.pages("hit") == PROMPT_TOKENS // 16
    assert (await pair.both("other tenant", salt="other")).completes[0].cached_tokens == 0


async def test_b033_expired_pages_are_recomputed(server: RedisServer) -> None:
    async with (
        prefill_worker(kv_url=server.url, kv_ttl_s=0.05) as prefill,
        decode_worker(kv_url=server.url) as decode,
    ):
        pair = Pair(prefill, decode, connect(server.url))
        await pair.redis.flushall()
        handed = await pair.prefilled("R")
        await asyncio.wait_for(pair.expired(), 5)
        together = await pair.decoded("R", handed.handoff)
        assert together.tokens == (await pair.alone()).tokens
        assert pair.pages("missing") == PAGES
        assert together.note("kv_fetch", "recomputed_tokens") == str(PROMPT_TOKENS)
        await pair.redis.aclose()


async def test_b034_half_written_and_damaged_pages_are_recomputed_from_the_last_good_one(pair: Pair) -> None:
    alone = await pair.alone()
    keys = set()
    for number, harm in enumerate(("missing", "corrupt", "mismatch")):
        salt = f"tenant {number}"
        handed = await pair.prefilled(harm, salt=salt)
        new = [key for key in await pair.page_keys() if key not in keys]
        keys |= set(new)
        for position, key in enumerate(new[: PAGES // 2]):
            value = await pair.redis.get(key)
            if harm == "missing":
                await pair.redis.delete(key)
            elif harm == "corrupt":
                await pair.redis.set(key, value[:-1] + bytes([value[-1] ^ 1]), px=60_000)
            else:
                await pair.redis.set(key, await pair.redis.get(new[position - 1]), px=60_000)
        together = await pair.decoded(harm, handed.handoff, salt=salt)
        assert together.tokens == alone.tokens, harm
        assert pair.pages(harm) == PAGES // 2
        assert 0 < int(together.note("kv_fetch", "recomputed_tokens")) <= PROMPT_TOKENS
    load = await pair.decode.load()
    assert load.kv_blocks_used == 0


async def test_a_store_that_is_down_costs_a_recompute_not_the_answer() -> None:
    async with (
        prefill_worker(kv_url="redis://127.0.0.1:1") as prefill,
        decode_worker(kv_url="redis://127.0.0.1:1") as decode,
    ):
        pair = Pair(prefill, decode, connect("redis://127.0.0.1:1"))
        handed = await pair.prefilled("R")
        assert json.loads(handed.handoff)["pages"] == 0
        assert prefill.metric("tokenpath_kv_publish_failures_total", reason="connection") == 1
        together = await pair.decoded("R", handed.handoff)
        assert together.tokens == (await pair.alone()).tokens


async def test_b042_a_store_that_hangs_is_waited_for_briefly_and_then_works_again(
    pair: Pair, server: RedisServer
) -> None:
    alone = await pair.alone()
    handed = await pair.prefilled("R")
    assert server.process is not None
    server.process.send_signal(signal.SIGSTOP)
    try:
        together = await asyncio.wait_for(pair.decoded("R", handed.handoff), 3.0)
    finally:
        server.process.send_signal(signal.SIGCONT)
    assert together.tokens == alone.tokens
    assert pair.pages("late") == PAGES
    again = await pair.both("again", salt="new tenant")
    assert again.tokens == alone.tokens
    assert pair.pages("fetched") == PAGES


async def test_the_first_token_is_out_before_the_pages_are_in(pair: Pair, server: RedisServer) -> None:
    handed = await pair.prefilled("R")
    call = pair.decode.engine.Generate(request("R", PROMPT, transfer=handed.handoff))
    assert server.process is not None
    server.process.send_signal(signal.SIGSTOP)
    try:
        chunk = (await asyncio.wait_for(call.read(), 0.4)).chunk
    finally:
        server.process.send_signal(signal.SIGCONT)
    assert list(chunk.token_ids) == [json.loads(handed.handoff)["first"][0]["token_id"]]
    call.cancel()
    await eventually(
        lambda: not pair.decode.metric("vllm:num_requests_running", model_name=TOKENIZER.name), "it is gone"
    )


async def test_b039_every_part_of_the_fingerprint_counts() -> None:
    model = ModelDescription("m", "a", 10, 100, (0,), "weights")
    layout = KvLayout(16, 1024, "bfloat16", "axes")
    prints = {
        kv_fingerprint(model, layout, "tokenizer"),
        kv_fingerprint(replace(model, name="n"), layout, "tokenizer"),
        kv_fingerprint(replace(model, weights_digest="other"), layout, "tokenizer"),
        kv_fingerprint(model, replace(layout, dtype="float32"), "tokenizer"),
        kv_fingerprint(model, replace(layout, description="other axes"), "tokenizer"),
        kv_fingerprint(model, replace(layout, block_size=32), "tokenizer"),
        kv_fingerprint(model, replace(layout, bytes_per_block=2048), "tokenizer"),
        kv_fingerprint(model, layout, "another"),
        kv_fingerprint(model, layout, "tokenizer", protocol_version=2),
    }
    assert len(prints) == 9


async def test_b039_a_handoff_between_unequal_workers_is_refused_and_counted(pair: Pair, server: RedisServer) -> None:
    handed = await pair.prefilled("R")
    async with decode_worker(kv_url=server.url, block_size=32) as other:
        with pytest.raises(Failure, match="must be the same") as caught:
            await other.generate(request("R", PROMPT, transfer=handed.handoff))
        assert caught.value.status is grpc.StatusCode.FAILED_PRECONDITION
        assert other.metric("tokenpath_kv_handoffs_refused_total") == 1
        assert (await other.load()).kv_blocks_used == 0


async def test_descriptors_that_make_no_sense_are_refused(pair: Pair) -> None:
    good = json.loads((await pair.prefilled("R")).handoff)
    bad: list[Any] = [
        "{",
        "[1]",
        '"x"',
        {"do_remote_decode": True},
        good | {"transport": "nccl"},
        {key: value for key, value in good.items() if key != "first"},
        good | {"pages": -1},
        good | {"pages": "many"},
        good | {"prompt_tokens": PROMPT_TOKENS + 1},
        good | {"request_id": "another"},
        good | {"first": []},
        good | {"first": [{"index": 0}]},
        good | {"first": [good["first"][0] | {"token_id": 10**6}]},
        good | {"first": [good["first"][0] | {"index": 3}]},
        good | {"first": 7},
        good | {"cached_tokens": PROMPT_TOKENS + 1},
        good | {"cached_tokens": 10**30},
        good | {"first": [good["first"][0] | {"finish": "weird"}]},
        good | {"first": [good["first"][0] | {"logprob": 10**400}]},
        good | {"first": [good["first"][0] | {"top": [[-5, -1.0]]}]},
        good | {"first": [good["first"][0] | {"top": [[2**40, -1.0]]}]},
        good | {"first": [good["first"][0] | {"top": [[math.inf, -1.0]]}]},
        '{"a":' * 5000,
        '{"a":' + "9" * 5000 + "}",
    ]
    for descriptor in bad:
        text = descriptor if isinstance(descriptor, str) else json.dumps(descriptor)
        with pytest.raises(Failure) as caught:
            await pair.decoded("R", text)
        assert caught.value.status is grpc.StatusCode.INVALID_ARGUMENT, text
        assert caught.value.param == "kv_transfer_params_json"
    with pytest.raises(Failure, match="do_remote_decode"):
        await pair.prefill.generate(request("R", PROMPT, transfer='{"do_remote_decode":false}'))
    assert (await pair.decoded("R", json.dumps(good))).text() == (await pair.alone()).text()


async def test_b032_a_caller_who_leaves_during_prefill_leaves_nothing_behind(pair: Pair) -> None:
    calls = [
        pair.prefill.engine.Generate(
            request(f"R{number}", long_script("x", ttft_ms=60_000), transfer=DO_REMOTE_DECODE, n=2)
        )
        for number in range(20)
    ]
    name = TOKENIZER.name
    await eventually(lambda: pair.prefill.metric("vllm:num_requests_running", model_name=name), "they run")
    for call in calls:
        call.cancel()
    await eventually(lambda: not pair.prefill.metric("vllm:num_requests_running", model_name=name), "they are gone")
    assert (await pair.prefill.load()).kv_blocks_used == 0
    assert all([await pair.redis.pttl(key) > 0 for key in await pair.page_keys()])
    assert (await pair.both("next")).text() == (await pair.alone()).text()
