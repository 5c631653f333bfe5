"""B033, B034, B039: the hand-off from prefill to decode goes wrong, and the text is right all the same."""

from __future__ import annotations

import asyncio
import signal
import time
from uuid import uuid4

import grpc
import pytest
import redis.asyncio
from smg_grpc_proto.generated import vllm_engine_pb2 as pb
from smg_grpc_proto.generated import vllm_engine_pb2_grpc

from services.tokenization.source import resolve_model
from tests.e2e.api import Api, script
from tests.e2e.faults.at_rest import at_rest
from tests.e2e.faults.byte_valve import byte_valve
from tests.e2e.faults.fleet import ALL, STREAM, WHOLE, fallbacks, workers_are
from tests.e2e.metrics import metric, samples

SAID = script(text="one two three")
AGGREGATED = {"x-tokenpath-mode": "aggregated"}


def fresh_prompt(words: int = 60) -> str:
    """Several pages that nobody has seen; without a script the engine's text is derived from all of them."""
    return " ".join([uuid4().hex, *(f"word{number}" for number in range(words))])


def pages(api: Api, worker: str, result: str) -> float:
    return samples(api.stack.metrics_url(worker)).get(f'tokenpath_kv_pages_total{{result="{result}"}}', 0)


async def page_lives(api: Api) -> dict[bytes, int]:
    """Every page in the store and the milliseconds it has left."""
    async with redis.asyncio.from_url(api.stack.kv_url) as client:
        keys = await client.keys("tp:kv:*")
        lives = {key: await client.pttl(key) for key in keys}
        return {key: left for key, left in lives.items() if left != -2}  # -2: it went in between


async def pages_come_and_go(api: Api, before: set[bytes]) -> set[bytes]:
    """Wait until new pages are in the store and gone again. Returns their names."""
    seen: set[bytes] = set()
    give_up = time.monotonic() + 10.0
    while not seen or seen & set(await page_lives(api)):
        assert time.monotonic() < give_up, f"{len(seen)} pages came and did not go"
        seen |= set(await page_lives(api)) - before
        await asyncio.sleep(0.02)
    return seen


async def test_b033_the_pages_expired_before_decode_came(api: Api) -> None:
    await workers_are(api, "prefill-0", "decode-0")
    await asyncio.to_thread(api.stack.restart, "prefill-0", settings={"TOKENPATH_PREFILL_KV_TTL_S": "1"})
    await workers_are(api, "prefill-0", "decode-0")
    prompt = fresh_prompt()
    before, lost = set(await page_lives(api)), pages(api, "decode-0", "missing")
    api.stack.kill("decode-0", signal.SIGSTOP)
    try:
        asked = asyncio.create_task(api.ask(STREAM, prompt, max_tokens=20))
        published = await pages_come_and_go(api, before)
    finally:
        api.stack.kill("decode-0", signal.SIGCONT)
    answer = await asked
    reference = await api.ask(STREAM, prompt, AGGREGATED, max_tokens=20)
    assert answer.text == reference.text
    assert answer.text.startswith(" tok")
    assert pages(api, "decode-0", "missing") >= lost + len(published) - 1
    await asyncio.to_thread(api.stack.restart, "prefill-0")


async def test_b034_prefill_is_killed_while_it_writes(api: Api) -> None:
    """Some pages are in the store, one perhaps in half: decode computes the prompt, and what was written expires."""
    await workers_are(api, "prefill-0", "decode-0")
    async with byte_valve(api.stack.process("redis-kv").ports["redis"]) as valve:
        settings = {"TOKENPATH_PREFILL_KV_URL": valve.redis_url}
        await asyncio.to_thread(api.stack.stop, "prefill-0")
        await asyncio.to_thread(api.stack.start, "prefill-0", settings=settings)
        await workers_are(api, "prefill-0", "decode-0")
        prompt, before = fresh_prompt(900), fallbacks(api.stack)
        stored = len(await page_lives(api))
        valve.budget = 40_000  # less than the pages have, more than it takes to ask which are there already
        asked = asyncio.create_task(api.ask(STREAM, prompt, max_tokens=20))
        await asyncio.wait_for(valve.held.wait(), 10)
        api.stack.kill("prefill-0")
        answer = await asked
    reference = await api.ask(STREAM, prompt, AGGREGATED, max_tokens=20)
    assert answer.text == reference.text
    assert fallbacks(api.stack) == before + 1
    lives = await page_lives(api)
    assert all(0 < left <= 60_000 for left in lives.values())
    assert len(lives) > stored, "it was to be killed while it wrote"
    await at_rest(api.stack)


async def test_b039_workers_whose_pages_mean_something_else(api: Api) -> None:
    """The router never pairs them, they refuse each other when forced, and alone each of them serves."""
    await workers_are(api, *ALL)
    other_model = {"TOKENPATH_DECODE_MODEL": str(resolve_model("smollm2", weights=False).folder)}  # by its name only
    try:
        await asyncio.to_thread(api.stack.restart, "decode-1", settings={"TOKENPATH_DECODE_BLOCK_SIZE": "32"})
        await workers_are(api, *ALL)
        answers = await asyncio.gather(*(api.ask(WHOLE, f"{number} {SAID}") for number in range(24)))
        assert {answer.text for answer in answers} == {"one two three"}
        assert {answer.headers["x-inference-pod"] for answer in answers} == {"decode-0"}
        await forced_pair(api, "decode-1")
        await asyncio.to_thread(api.stack.restart, "decode-0", settings=other_model)
        await workers_are(api, *ALL)
        alone = metric(api.stack, "router", "tokenpath_router_fallbacks_total")
        answers = await asyncio.gather(*(api.ask(WHOLE, f"{number} {SAID}") for number in range(24)))
        assert {answer.text for answer in answers} == {"one two three"}
        assert metric(api.stack, "router", "tokenpath_router_fallbacks_total") == alone + 24
        await forced_pair(api, "decode-0")
    finally:
        await asyncio.to_thread(api.stack.restart, "decode-0", "decode-1")


async def forced_pair(api: Api, decode: str) -> None:
    """Give a worker a hand-off that is not for it: refused, counted, and nothing is kept."""
    assert metric(api.stack, decode, "tokenpath_kv_handoffs_refused_total") == 0
    async with (
        grpc.aio.insecure_channel(api.stack.address("prefill-0")) as to_prefill,
        grpc.aio.insecure_channel(api.stack.address(decode)) as to_decode,
    ):
        wanted = pb.GenerateRequest(request_id="forced", tokenized=pb.TokenizedInput(input_ids=range(100, 140)))
        wanted.sampling_params.max_tokens = 5
        wanted.kv_transfer_params_json = '{"do_remote_decode":true}'
        ends = [answer async for answer in vllm_engine_pb2_grpc.VllmEngineStub(to_prefill).Generate(wanted)]
        wanted.kv_transfer_params_json = ends[-1].complete.kv_transfer_params_json
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in vllm_engine_pb2_grpc.VllmEngineStub(to_decode).Generate(wanted):
                pass
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert metric(api.stack, decode, "tokenpath_kv_handoffs_refused_total") == 1
    await at_rest(api.stack)
