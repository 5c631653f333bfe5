"""One worker, asked directly: outputs, refusals, cancellation, deadlines."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from smg_grpc_proto.generated import common_pb2
from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from services.engine.scripted_runner import ScriptedRunner
from services.platform.failures import Failure
from tests.eventually import eventually
from tests.integration.worker_harness import (
    EOS,
    TOKENIZER,
    Answer,
    WorkerClient,
    decode_worker,
    prefill_worker,
    request,
    script,
)


@pytest.fixture
async def worker() -> AsyncIterator[WorkerClient]:
    async with decode_worker(kv_blocks=64) as running:
        yield running


async def until_empty(worker: WorkerClient) -> None:
    """Gauges to baseline."""
    await eventually(lambda: not worker_busy(worker), "the engine holds nothing", 2.0)


def worker_busy(worker: WorkerClient) -> bool:
    values = [worker.metric(f"vllm:{name}", model_name=TOKENIZER.name) for name in
              ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")]  # fmt: skip
    return any(values)


async def first_chunk(call: Any) -> pb.GenerateStreamChunk:
    return (await call.read()).chunk


async def test_streams_a_token_a_chunk_and_answers_the_same_whole(worker: WorkerClient) -> None:
    prompt = script("The capital of France is Paris.", itl_ms=4)
    streamed = await worker.generate(request("stream", prompt))
    whole = await worker.generate(request("whole", prompt, stream=False))

    assert streamed.text() == whole.text() == "The capital of France is Paris."
    assert not whole.chunks
    assert all(len(chunk.token_ids) == 1 for chunk in streamed.chunks)
    assert [chunk.completion_tokens for chunk in streamed.chunks] == list(range(1, len(streamed.tokens[0]) + 1))
    end = streamed.completes[0]
    assert (end.finish_reason, end.matched_token_id, end.completion_tokens) == ("stop", EOS, len(streamed.tokens[0]))
    assert end.prompt_tokens == len(TOKENIZER.encode(prompt, add_special_tokens=False))
    assert whole.completes[0].output_ids == end.output_ids


async def test_text_is_tokenised_here(worker: WorkerClient) -> None:
    wanted = request("R", "")
    wanted.text = script("hello")
    assert (await worker.generate(wanted)).text() == "hello"


async def test_b013_every_choice_has_its_index_and_its_end(worker: WorkerClient) -> None:
    prompt = script(choices=[{"text": "a b"}, {"text": "c d e"}, {"text": "f", "finish": "length"}])
    answer = await worker.generate(request("R", prompt, n=3))
    assert [answer.text(index) for index in range(3)] == ["a b", "c d e", "f"]
    assert [answer.completes[index].finish_reason for index in range(3)] == ["stop", "stop", "length"]
    assert {chunk.cached_tokens for chunk in answer.chunks} == {0}
    for n in (129, 1_000_000):
        with pytest.raises(Failure, match="n must be at most") as caught:
            await worker.generate(request("many", prompt, n=n))
        assert caught.value.param == "n"


async def test_logprobs_come_with_their_tokens(worker: WorkerClient) -> None:
    answer = await worker.generate(request("R", script("a b c"), logprobs=2))
    for chunk in answer.chunks:
        assert list(chunk.output_logprobs.token_ids) == list(chunk.token_ids)
        assert len(chunk.output_logprobs.token_logprobs) == len(chunk.token_ids)
        assert [len(top.values) for top in chunk.output_logprobs.top_logprobs] == [2] * len(chunk.token_ids)
    assert not (await worker.generate(request("none", script("a")))).chunks[0].HasField("output_logprobs")


BAD_FIELDS: dict[str, list[Any]] = {
    "temperature": [math.nan, math.inf, -1.0, 2.1],
    "top_p": [1.1, math.nan, -0.1],
    "min_p": [math.nan, 1.5],
    "frequency_penalty": [10.0, math.nan],
    "presence_penalty": [-10.0],
    "repetition_penalty": [-1.0, math.inf],
    "logprobs": [-1, 21],
    "max_tokens": [0],
    "logit_bias": [{10**6: 1.0}, {1: math.nan}, {1: 101.0}, dict.fromkeys(range(1025), 1.0)],
    "stop_token_ids": [[49152], [10**9], list(range(1025))],
    "prompt_logprobs": [1],
    "truncate_prompt_tokens": [5],
    "json_schema": ["{}"],
    "regex": ["a*"],
    "grammar": ["root ::= x"],
}


async def test_b011_a_bad_field_is_named_and_hurts_nobody_else(worker: WorkerClient) -> None:
    neighbour = asyncio.create_task(worker.generate(request("good", script("one two three", itl_ms=20))))
    for field, values in BAD_FIELDS.items():
        for value in values:
            with pytest.raises(Failure, match=field) as caught:
                await worker.generate(request("bad", "hello", **{field: value}))
            assert (caught.value.status, caught.value.param) == (grpc.StatusCode.INVALID_ARGUMENT, field), value
    assert (await neighbour).text() == "one two three"


async def test_b011_a_tiny_temperature_is_served(worker: WorkerClient) -> None:
    assert (await worker.generate(request("R", script("ok"), temperature=1e-9, top_p=0.0))).text() == "ok"


async def test_b015_an_empty_or_impossible_prompt_is_refused(worker: WorkerClient) -> None:
    no_input = pb.GenerateRequest(request_id="R", stream=True)
    for bad in (request("R", []), no_input, request("R", [49152]), request("R", [2**32 - 1])):
        with pytest.raises(Failure, match="prompt") as caught:
            await worker.generate(bad)
        assert caught.value.status is grpc.StatusCode.INVALID_ARGUMENT
    assert (await worker.generate(request("next", script("ok")))).text() == "ok"


async def test_b073_a_text_that_cannot_fit_is_refused_before_it_is_tokenised(worker: WorkerClient) -> None:
    with pytest.raises(Failure, match="context of") as caught:
        async with asyncio.timeout(5):
            await worker.generate(pb.GenerateRequest(request_id="R", text="hello " * 2_000_000))
    assert caught.value.status is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_script_of_no_sense_ends_its_request_and_not_the_engine(worker: WorkerClient) -> None:
    for text in (
        'SCRIPT:{"pieces":[5]}',
        'SCRIPT:{"repeat":1e999}',
        'SCRIPT:{"a":' + "[" * 3000,
        'SCRIPT:{"a":' + "9" * 4400 + "}",
    ):
        with pytest.raises(Failure) as caught:
            await worker.generate(request("R", text))
        assert caught.value.status is grpc.StatusCode.INVALID_ARGUMENT
    assert (await worker.generate(request("next", script("ok")))).text() == "ok"


async def test_other_inputs_that_cannot_be_honoured_are_named(worker: WorkerClient) -> None:
    pictures = request("R", "hello")
    pictures.mm_inputs.im_token_id = 5
    legacy = request("R", "hello")
    legacy.kv_transfer_params.remote_port = 5
    for bad, param in ((pictures, "mm_inputs"), (legacy, "kv_transfer_params")):
        with pytest.raises(Failure) as caught:
            await worker.generate(bad)
        assert (caught.value.status, caught.value.param) == (grpc.StatusCode.INVALID_ARGUMENT, param)


async def test_b004_b045_a_prompt_that_does_not_fit_is_refused_at_once() -> None:
    async with decode_worker(kv_blocks=4) as worker:
        with pytest.raises(Failure, match="at most 63") as caught:
            await worker.generate(request("long", [5] * 64))
        assert caught.value.code == "context_length_exceeded"
        fits = await worker.generate(request("fits", [5] * 63))
        assert (fits.completes[0].finish_reason, len(fits.tokens[0])) == ("length", 1)
        grows = await worker.generate(request("grows", [5] * 20, max_tokens=2**31))
        assert (grows.completes[0].finish_reason, len(grows.tokens[0])) == ("length", 44)


async def test_b049_the_waiting_queue_is_bounded() -> None:
    async with decode_worker(max_num_seqs=2, max_waiting=2) as worker:
        calls = [worker.engine.Generate(request(f"R{number}", script("x", hang_after=1))) for number in range(4)]
        await eventually(lambda: worker.metric("vllm:num_requests_waiting", model_name=TOKENIZER.name) == 2, "two wait")
        with pytest.raises(Failure, match="come back") as caught:
            await worker.generate(request("more", "hello"))
        assert caught.value.status is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert caught.value.retry_after_ms > 0
        for call in calls:
            call.cancel()
        await until_empty(worker)
        assert (await worker.generate(request("next", script("ok")))).text() == "ok"


async def test_b022_a_live_id_is_refused_and_free_again_after_the_call(worker: WorkerClient) -> None:
    slow = request("R", script("mine " * 20, itl_ms=5))
    first = asyncio.create_task(worker.generate(slow))
    await eventually(lambda: worker_busy(worker), "the first stream runs")
    with pytest.raises(Failure, match="running already") as caught:
        await worker.generate(request("R", script("theirs")))
    assert caught.value.status is grpc.StatusCode.ALREADY_EXISTS
    assert (await first).text() == "mine " * 20

    call = worker.engine.Generate(request("R", script("old " * 50, itl_ms=5)))
    await first_chunk(call)
    call.cancel()
    reused = await retried(worker, request("R", script("new")))
    assert reused.text() == "new"
    await until_empty(worker)


async def retried(worker: WorkerClient, wanted: pb.GenerateRequest) -> Answer:
    """The cancel travels by itself: the id is free when it has arrived."""
    for _ in range(100):
        with suppress(Failure):
            return await worker.generate(wanted)
        await asyncio.sleep(0.005)
    raise AssertionError("the id is still taken")


@pytest.mark.parametrize("keys", [{"hang_after": 1}, {"itl_ms": 20}, {"ttft_ms": 10_000}])
async def test_b028_a_caller_who_leaves_frees_everything(worker: WorkerClient, keys: dict[str, int]) -> None:
    calls = [worker.engine.Generate(request(f"R{i}", script("x " * 400, **keys), n=2)) for i in range(40)]
    await eventually(lambda: worker_busy(worker), "they run")
    for call in calls:
        call.cancel()
    await until_empty(worker)
    assert (await worker.generate(request("next", script("ok")))).text() == "ok"


async def test_abort_ends_one_choice_or_all(worker: WorkerClient) -> None:
    prompt = script("word " * 30, itl_ms=5)
    running = asyncio.create_task(worker.generate(request("R", prompt, n=2)))
    await eventually(lambda: worker_busy(worker), "it runs")
    await worker.engine.Abort(pb.AbortRequest(request_ids=["R/1", "unknown", "R/7", "R/x"]))
    answer = await running
    assert answer.completes[1].finish_reason == "abort"
    assert answer.text(0) == "word " * 30

    running = asyncio.create_task(worker.generate(request("S", script("x", hang_after=0), n=2)))
    await eventually(lambda: worker_busy(worker), "it runs")
    await worker.engine.Abort(pb.AbortRequest(request_ids=["S"]))
    answer = await running
    assert [answer.completes[index].finish_reason for index in range(2)] == ["abort", "abort"]
    await until_empty(worker)


async def test_the_callers_deadline_ends_the_work(worker: WorkerClient, caplog: pytest.LogCaptureFixture) -> None:
    async def expires(number: int) -> grpc.StatusCode:
        wanted = request(f"R{number}", script("x" * 500, itl_ms=1 + number % 3))
        with pytest.raises(Failure) as caught:
            await worker.generate(wanted, timeout_s=0.05 + number / 500)
        return caught.value.status

    statuses = await asyncio.gather(*(expires(number) for number in range(40)))
    assert set(statuses) == {grpc.StatusCode.DEADLINE_EXCEEDED}
    await until_empty(worker)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_a_failing_script_is_internal_and_keeps_what_came_before(worker: WorkerClient) -> None:
    call = worker.engine.Generate(request("R", script("a b c d", fail_after=2, itl_ms=5)))
    assert [(await first_chunk(call)).completion_tokens for _ in range(2)] == [1, 2]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert "tokenpath-stages-bin" in {key for key, _ in caught.value.trailing_metadata() or ()}


async def test_a_dead_engine_fails_its_requests_and_says_so(
    worker: WorkerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = asyncio.create_task(worker.generate(request("hangs", script("x", hang_after=0))))
    await eventually(lambda: worker_busy(worker), "it runs")

    def break_down(self: ScriptedRunner, batch: object) -> None:
        raise RuntimeError("out of luck")

    monkeypatch.setattr(ScriptedRunner, "execute", break_down)
    with pytest.raises(Failure, match="engine has stopped"):
        await worker.generate(request("breaks", "hello"))
    with pytest.raises(Failure, match="engine has stopped"):
        await waiting
    with pytest.raises(Failure, match="engine has stopped") as caught:
        await worker.generate(request("late", "hello"))
    assert caught.value.status is grpc.StatusCode.INTERNAL
    assert not (await worker.engine.HealthCheck(pb.HealthCheckRequest())).healthy
    health = health_pb2_grpc.HealthStub(worker.runtime.channels.get(worker.runtime.address))
    answer = await health.Check(health_pb2.HealthCheckRequest(service="vllm.grpc.engine.VllmEngine"))
    assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING


async def test_info_says_what_gateways_need() -> None:
    async with prefill_worker(max_num_seqs=8) as worker:
        server = await worker.engine.GetServerInfo(pb.GetServerInfoRequest())
        assert (server.server_type, server.kv_role, server.kv_connector) == (
            "vllm-grpc",
            "kv_producer",
            "NixlConnector",
        )
        assert (server.max_num_seqs, server.block_size, server.data_parallel_size) == (8, 16, 1)
        model = await worker.engine.GetModelInfo(pb.GetModelInfoRequest())
        assert (model.served_model_name, model.is_generation) == (TOKENIZER.name, True)
        assert (model.vocab_size, list(model.eos_token_ids), model.max_context_length) == (49152, [EOS], 8192)
        [load] = (await worker.engine.GetLoads(pb.GetLoadsRequest())).loads
        assert (load.max_running_requests, load.max_total_num_tokens) == (8, 1024 * 16)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await worker.engine.Embed(pb.EmbedRequest())
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_flush_waits_for_idle_and_forgets_the_prefix(worker: WorkerClient) -> None:
    prompt = "a prompt that is long enough to fill a page of sixteen tokens, and then some more of it"
    await worker.generate(request("cold", prompt, max_tokens=1))
    warm = await worker.generate(request("warm", prompt, max_tokens=1))
    assert warm.chunks[0].cached_tokens == 16
    busy = asyncio.create_task(worker.generate(request("busy", script("x", hang_after=0)), timeout_s=0.5))
    await eventually(lambda: worker_busy(worker), "it runs")
    assert not (await worker.engine.FlushCache(common_pb2.FlushCacheRequest())).success
    flush = worker.engine.FlushCache(common_pb2.FlushCacheRequest(timeout_s=5))
    with pytest.raises(Failure):
        await busy
    assert (await flush).success
    cold = await worker.generate(request("again", prompt, max_tokens=1))
    assert cold.chunks[0].cached_tokens == 0
