"""The detokenizer as a service between a real gRPC client and a decode worker's stand-in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from opentelemetry.context import Context
from smg_grpc_proto.generated.vllm_engine_pb2 import GenerateRequest

from services.detokenizer.app import build
from services.detokenizer.settings import DetokenizerSettings
from services.platform.context import RequestContext
from services.platform.failures import ERROR_DETAIL_KEY, Failure
from services.platform.limits import client_options
from services.platform.server import Runtime, serving
from services.tokenization.tokenizer import Tokenizer
from tests.eventually import eventually
from tests.integration.decode_stand_in import (
    StandInDecode,
    chunk,
    complete,
    for_ever,
    running_decode,
    until_aborted,
)
from tokenpath.v1.common_pb2 import ErrorDetail, StageReports
from tokenpath.v1.detokenizer_pb2 import Delta, StreamEnd, StreamRequest, StreamResponse
from tokenpath.v1.detokenizer_pb2_grpc import DetokenizerStub

pytestmark = pytest.mark.model

B023 = "삼겹살 🏳️‍🌈 é한"
TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load("smollm2")


@pytest.fixture
async def decode() -> AsyncIterator[StandInDecode]:
    async with running_decode() as stand_in:
        yield stand_in


@pytest.fixture
async def runtime() -> AsyncIterator[Runtime[DetokenizerSettings]]:
    settings = DetokenizerSettings(instance="detokenizer-test", drain_s=0, report_wait_s=0.3)
    async with serving("detokenizer", settings, build) as running:
        yield running


@pytest.fixture
async def stub(runtime: Runtime[DetokenizerSettings]) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(runtime.address, options=client_options()) as channel:
        yield DetokenizerStub(channel)


def stream_request(decode: StandInDecode, **fields: Any) -> StreamRequest:
    engine_request = GenerateRequest(request_id="req_1")
    engine_request.tokenized.input_ids.extend(range(7))
    defaults = {
        "request_id": "req_1",
        "attempt": 2,
        "cache_salt": "salt",
        "decode_address": decode.address,
        "engine_request": engine_request.SerializeToString(),
    }
    return StreamRequest(**(defaults | fields))


async def collect(call: Any) -> tuple[list[Delta], StreamEnd]:
    """All deltas, and the end, which is in the last message alone."""
    responses = [response async for response in call]
    assert [response.HasField("end") for response in responses] == [False] * (len(responses) - 1) + [True]
    return [delta for response in responses for delta in response.deltas], responses[-1].end


def text_of(deltas: list[Delta], index: int = 0) -> str:
    return "".join(delta.text for delta in deltas if delta.index == index)


def metric(runtime: Runtime[DetokenizerSettings], name: str, **labels: str) -> float:
    return runtime.registry.get_sample_value(f"tokenpath_detokenizer_{name}", labels) or 0.0


async def test_b023_text_is_whole_however_the_bytes_are_cut(
    stub: Any, decode: StandInDecode, tokenizer: Tokenizer
) -> None:
    byte_ids = {tokenizer.token_bytes(each): each for each in range(tokenizer.vocab_size)}
    ids = [byte_ids[bytes((byte,))] for byte in B023.encode()]
    one_by_one = [chunk(each) for each in ids]
    cut_once = [[chunk(*ids[:cut]), chunk(*ids[cut:])] for cut in range(1, len(ids))]
    for messages in (one_by_one, *cut_once):
        decode.script = [*messages, complete("length", len(ids))]
        deltas, end = await collect(stub.Stream(stream_request(decode), timeout=10))
        assert text_of(deltas) == B023
        assert not any("\ufffd" in delta.text for delta in deltas)
        assert sum(delta.tokens for delta in deltas) == end.usage.completion_tokens == len(ids)


async def test_b025_output_finishes_the_prompts_character(
    stub: Any, decode: StandInDecode, tokenizer: Tokenizer
) -> None:
    emoji = "😀".encode()
    byte_ids = {tokenizer.token_bytes(each): each for each in range(tokenizer.vocab_size)}
    ids = [byte_ids[emoji[2:3]], byte_ids[emoji[3:]], byte_ids[b"ok"]]
    decode.script = [*map(chunk, ids), complete("length", 3)]
    deltas, _ = await collect(stub.Stream(stream_request(decode, prompt_tail=emoji[:2]), timeout=10))
    assert [delta.text for delta in deltas] == ["😀", "ok", ""]


@pytest.mark.parametrize("tail", ["é".encode(), b"\xe0\x80", b"\xff", b"a\xf0"])
async def test_b025_no_text_of_the_prompt_in_the_output(
    stub: Any, decode: StandInDecode, tokenizer: Tokenizer, tail: bytes
) -> None:
    decode.script = [chunk(*tokenizer.encode("ok", add_special_tokens=False)), complete("length", 1)]
    deltas, _ = await collect(stub.Stream(stream_request(decode, prompt_tail=tail), timeout=10))
    assert text_of(deltas) == "ok"


async def test_a_message_of_decode_becomes_one_message(stub: Any, decode: StandInDecode, tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("one two three four", add_special_tokens=False)
    decode.script = [chunk(ids[0]), chunk(*ids[1:]), complete("length", 4)]
    responses = [response async for response in stub.Stream(stream_request(decode), timeout=10)]
    assert [[delta.text for delta in response.deltas] for response in responses] == [
        ["one"],
        [" two", " three", " four"],
        [""],
        [],
    ]


async def test_what_decode_receives(stub: Any, decode: StandInDecode) -> None:
    decode.script = [chunk(500), complete("length", 1)]
    trace = RequestContext("req_1", 2, "salt", Context()).metadata()
    metadata = [*trace, ("traceparent", f"00-{TRACE}-b7ad6b7169203331-01")]
    request = stream_request(decode)
    await collect(stub.Stream(request, timeout=10, metadata=metadata))
    assert decode.requests[0].SerializeToString() == request.engine_request
    seen = decode.metadata[0]
    assert seen["tokenpath-request-id"] == "req_1"
    assert seen["tokenpath-attempt"] == "2"
    assert seen["tokenpath-cache-salt"] == "salt"
    assert seen["traceparent"].split("-")[1] == TRACE
    assert 8 < decode.remaining_s[0] <= 10


async def test_usage_and_reports_come_at_the_end(stub: Any, decode: StandInDecode) -> None:
    decode.script = [chunk(500), chunk(501), complete("length", 2)]
    _, end = await collect(stub.Stream(stream_request(decode), timeout=10))
    assert (end.usage.prompt_tokens, end.usage.completion_tokens, end.usage.cached_tokens) == (7, 2, 3)
    assert [(report.stage, report.service) for report in end.reports] == [
        ("decode", "decode"),
        ("detokenize", "detokenizer"),
    ]
    own = end.reports[1]
    assert own.instance == "detokenizer-test"
    assert own.tokens == 2
    assert {part.name for part in own.parts} == {"wait_decode", "text", "send"}
    assert 0 < sum(part.duration_ns for part in own.parts) <= own.duration_ns
    assert float(own.attributes["first_token_in_ms"]) <= float(own.attributes["first_text_out_ms"])


async def test_b007_a_stop_string_ends_the_stream_and_aborts_decode(
    stub: Any, decode: StandInDecode, tokenizer: Tokenizer, runtime: Runtime[DetokenizerSettings]
) -> None:
    ids = [tokenizer.encode(piece, add_special_tokens=False)[0] for piece in ("x", "DE", "F", "G", "HI")]
    decode.script = [*map(chunk, ids), chunk(500), until_aborted, complete("abort", 6)]
    deltas, end = await collect(stub.Stream(stream_request(decode, stop=["EFGHI"]), timeout=10))
    assert text_of(deltas) == "xD"
    assert [delta.finish_reason for delta in deltas if delta.finish_reason] == ["stop"]
    assert decode.aborted == ["req_1/0"]
    assert end.usage.completion_tokens == sum(delta.tokens for delta in deltas) == 5
    assert [report.stage for report in end.reports] == ["decode", "detokenize"]
    assert metric(runtime, "stop_strings_total") == 1
    assert metric(runtime, "missing_reports_total") == 0


async def test_the_text_up_to_a_stop_string_does_not_wait_for_decode_to_end(stub: Any, decode: StandInDecode) -> None:
    decode.script = [chunk(500), for_ever]
    text = Tokenizer.load("smollm2").token_bytes(500).decode()
    call = stub.Stream(stream_request(decode, stop=[text]), timeout=10)
    first: StreamResponse = await call.read()
    assert first.deltas[0].finish_reason == "stop"
    assert not decode.cancelled.is_set()
    last: StreamResponse = await call.read()
    assert last.end.usage.completion_tokens == 1


async def test_a_decode_worker_that_ignores_the_abort_is_cancelled_and_counted(
    stub: Any, decode: StandInDecode, runtime: Runtime[DetokenizerSettings]
) -> None:
    decode.script = [chunk(500), for_ever]
    decode.refuses_aborts = True
    text = Tokenizer.load("smollm2").token_bytes(500).decode()
    _, end = await collect(stub.Stream(stream_request(decode, stop=[text]), timeout=10))
    assert [report.stage for report in end.reports] == ["detokenize"]
    await asyncio.wait_for(decode.cancelled.wait(), 5)
    assert metric(runtime, "missing_reports_total") == 1
    await eventually(lambda: metric(runtime, "failed_aborts_total") == 1, "the failed abort is counted")


async def test_choices_end_one_by_one(stub: Any, decode: StandInDecode, tokenizer: Tokenizer) -> None:
    (a,) = tokenizer.encode(" alpha", add_special_tokens=False)[:1]
    (b,) = tokenizer.encode(" beta", add_special_tokens=False)[:1]
    stop = tokenizer.token_bytes(a).decode()
    decode.script = [
        chunk(b, index=1),
        chunk(a),
        until_aborted,
        chunk(b),  # of the choice that has ended: too late
        chunk(b, index=1),
        chunk(b, index=2),
        complete("length", 2, index=1),
        complete("stop", 1, index=2),
    ]
    deltas, end = await collect(stub.Stream(stream_request(decode, stop=[stop], choices=3), timeout=10))
    beta = tokenizer.token_bytes(b).decode()
    assert [text_of(deltas, index) for index in range(3)] == ["", beta * 2, beta]
    assert [(d.index, d.finish_reason) for d in deltas if d.finish_reason] == [(0, "stop"), (1, "length"), (2, "stop")]
    assert decode.aborted == ["req_1/0"]
    assert end.usage.completion_tokens == 4
    assert end.usage.prompt_tokens == 7


async def test_eos_and_stop_tokens_of_the_request_are_no_text(
    stub: Any, decode: StandInDecode, tokenizer: Tokenizer
) -> None:
    engine_request = GenerateRequest(request_id="req_1")
    engine_request.sampling_params.stop_token_ids.append(501)
    request = stream_request(decode, engine_request=engine_request.SerializeToString(), choices=2)
    decode.script = [
        chunk(500, 501),
        complete("stop", 2),
        chunk(500, 2, index=1),
        complete("stop", 2, index=1),
    ]
    deltas, end = await collect(stub.Stream(request, timeout=10))
    assert [text_of(deltas, index) for index in range(2)] == [tokenizer.token_bytes(500).decode()] * 2
    assert end.usage.completion_tokens == 4


async def test_a_client_that_leaves_ends_the_call_to_decode(
    stub: Any, decode: StandInDecode, runtime: Runtime[DetokenizerSettings]
) -> None:
    decode.script = [chunk(500), for_ever]
    call = stub.Stream(stream_request(decode), timeout=10)
    await call.read()
    call.cancel()
    await asyncio.wait_for(decode.cancelled.wait(), 2)
    await eventually(lambda: metric(runtime, "streams_total", status="CANCELLED") == 1, "the stream has ended")
    assert metric(runtime, "active_streams") == 0


async def test_a_client_that_leaves_without_reading_ends_the_call_to_decode(
    stub: Any, decode: StandInDecode, runtime: Runtime[DetokenizerSettings]
) -> None:
    decode.script = [chunk(*[500] * 1000)] * 500  # more than the buffers on the way can hold
    call = stub.Stream(stream_request(decode), timeout=30)
    await call.read()
    call.cancel()
    await asyncio.wait_for(decode.cancelled.wait(), 5)
    await eventually(lambda: metric(runtime, "active_streams") == 0, "the stream has ended")
    assert metric(runtime, "streams_total", status="INTERNAL") == 0


async def test_the_deadline_ends_everything(stub: Any, decode: StandInDecode) -> None:
    decode.script = [chunk(500), for_ever]
    call = stub.Stream(stream_request(decode), timeout=0.3)
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await collect(call)
    assert error.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await asyncio.wait_for(decode.cancelled.wait(), 2)


async def test_an_error_of_decode_comes_through_after_the_text(stub: Any, decode: StandInDecode) -> None:
    failure = Failure(grpc.StatusCode.RESOURCE_EXHAUSTED, "no KV blocks", code="kv_full", param="n", retry_after_ms=9)
    decode.script = [chunk(500), chunk(501), failure]
    call = stub.Stream(stream_request(decode), timeout=10)
    assert [(await call.read()).deltas[0].tokens for _ in range(2)] == [1, 1]
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call.read()
    assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    trailers = dict(error.value.trailing_metadata())
    assert ErrorDetail.FromString(trailers[ERROR_DETAIL_KEY]) == ErrorDetail(
        code="kv_full", param="n", message="no KV blocks", retry_after_ms=9
    )
    reports = StageReports.FromString(trailers["tokenpath-stages-bin"]).reports
    assert [report.stage for report in reports] == ["decode", "detokenize"]


async def test_a_decode_worker_that_gives_up_is_an_error_and_not_an_end(stub: Any, decode: StandInDecode) -> None:
    for script, status in (
        ([chunk(500)], grpc.StatusCode.INTERNAL),
        ([chunk(500), complete("abort", 1)], grpc.StatusCode.UNAVAILABLE),
        ([chunk(500), Failure(grpc.StatusCode.CANCELLED, "")], grpc.StatusCode.UNAVAILABLE),
    ):
        decode.script = list(script)
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await collect(stub.Stream(stream_request(decode), timeout=10))
        assert error.value.code() is status


async def test_a_decode_worker_that_is_gone(stub: Any, decode: StandInDecode) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await collect(stub.Stream(stream_request(decode, decode_address="127.0.0.1:1"), timeout=10))
    assert error.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "decode" in error.value.details()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("decode_address", ""),
        ("engine_request", b"\xff\xff"),
        ("prompt_tail", "😀".encode()),
        ("stop", ["a", ""]),
        ("choices", 1000),
    ],
)
async def test_a_request_that_makes_no_sense_is_refused_by_field(
    stub: Any, decode: StandInDecode, field: str, value: Any
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await collect(stub.Stream(stream_request(decode, **{field: value}), timeout=10))
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert field in error.value.details()
    assert decode.requests == []
