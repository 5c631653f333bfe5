"""The OpenAI-compatible contract, over a real port."""

import asyncio
import socket
from typing import Any

import grpc
import httpx
import openai
import pytest

from services.platform.failures import Failure
from tests.fakes import KEY, MAX_MODEL_LEN, MODEL, OTHER_KEY, FakeStream, RunningGateway, events
from tokenpath.v1.detokenizer_pb2 import Delta, TokenLogprob
from tokenpath.v1.router_pb2 import Mode

pytestmark = pytest.mark.asyncio(loop_scope="module")

QUESTION: list[Any] = [{"role": "user", "content": "capital of France?"}]


def client(gateway: RunningGateway, key: str = KEY) -> openai.AsyncOpenAI:
    http = httpx.AsyncClient(trust_env=False)
    return openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=key, max_retries=0, http_client=http)


async def test_the_openai_client_gets_chats_and_completions_in_both_modes(gateway: RunningGateway) -> None:
    async with client(gateway) as api:
        answer = await api.chat.completions.create(model=MODEL, messages=QUESTION)
        assert answer.choices[0].message.content == "Paris it is."
        assert answer.choices[0].finish_reason == "stop"
        assert answer.usage is not None
        assert (answer.usage.completion_tokens, answer.object) == (4, "chat.completion")

        chunks = [
            chunk async for chunk in await api.chat.completions.create(model=MODEL, messages=QUESTION, stream=True)
        ]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Paris it is."
        assert len({chunk.id for chunk in chunks}) == 1

        completion = await api.completions.create(model=MODEL, prompt="Paris")
        assert (completion.choices[0].text, completion.object) == ("Paris it is.", "text_completion")
        parts = [part async for part in await api.completions.create(model=MODEL, prompt="Paris", stream=True)]
        assert "".join(part.choices[0].text for part in parts) == "Paris it is."

        assert [model.id async for model in await api.models.list()] == [MODEL]


async def test_the_openai_client_understands_our_errors(gateway: RunningGateway) -> None:
    async with client(gateway) as api:
        with pytest.raises(openai.NotFoundError, match="does not exist"):
            await api.chat.completions.create(model="nope", messages=QUESTION)
        with pytest.raises(openai.BadRequestError, match="temperature"):
            await api.chat.completions.create(model=MODEL, messages=QUESTION, temperature=3)
    async with client(gateway, "wrong") as api:
        with pytest.raises(openai.AuthenticationError):
            await api.chat.completions.create(model=MODEL, messages=QUESTION)


async def test_b002_raw_bytes_of_a_stream(gateway: RunningGateway) -> None:
    for answer in (await gateway.chat(stream=True), await gateway.complete(stream=True)):
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-cache"
        assert answer.headers["x-accel-buffering"] == "no"
        assert "\r" not in answer.text
        assert answer.text.endswith("data: [DONE]\n\n")
        assert answer.text.count("[DONE]") == 1
        finishes = [event["choices"][0]["finish_reason"] for event in events(answer)]
        assert finishes == [None, None, None, "stop"]


async def test_b001_usage_comes_only_when_asked_for_and_last(gateway: RunningGateway) -> None:
    *chunks, last = events(await gateway.chat(stream=True, stream_options={"include_usage": True}))
    assert (last["choices"], last["usage"]["completion_tokens"]) == ([], 4)
    assert all(chunk["usage"] is None for chunk in chunks)
    assert all("usage" not in chunk for chunk in events(await gateway.chat(stream=True, stream_options={})))
    assert (await gateway.chat(stream_options={"include_usage": True})).status_code == 400
    assert (await gateway.chat(stream=False, stream_options={})).status_code == 400
    both = {"include_usage": True, "continuous_usage_stats": True}
    counts = [
        chunk["usage"]["completion_tokens"] for chunk in events(await gateway.chat(stream=True, stream_options=both))
    ]
    assert counts == [1, 2, 3, 4, 4]


async def test_the_role_comes_with_the_first_token_and_nothing_before(gateway: RunningGateway) -> None:
    first = events(await gateway.chat(stream=True))[0]
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": "Paris"}


@pytest.mark.parametrize("stream", [False, True])
async def test_b004_b005_too_long_is_a_400_before_any_byte_and_costs_nothing(
    gateway: RunningGateway, stream: bool
) -> None:
    cases: list[tuple[Any, int]] = [
        ([5] * (MAX_MODEL_LEN + 1), 1),
        ([5] * MAX_MODEL_LEN, 1),
        ([5] * 5, MAX_MODEL_LEN - 4),
        ([5] * 5, 2**31),
        ([5] * 5, 2**63),
    ]
    for prompt, max_tokens in cases:
        answer = await gateway.complete(prompt=prompt, max_tokens=max_tokens, stream=stream)
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert (await gateway.complete(prompt=[5] * 5, max_tokens=MAX_MODEL_LEN - 5, stream=stream)).status_code == 200
    assert len(gateway.fleet.router.requests) == 1
    assert len(gateway.fleet.auth.rows) == 1


async def test_b013_choices_and_prompts_each_end_and_are_counted_once(gateway: RunningGateway) -> None:
    answer = (await gateway.chat(n=3)).json()
    assert [(choice["index"], choice["finish_reason"]) for choice in answer["choices"]] == [
        (i, "stop") for i in range(3)
    ]
    alone = (await gateway.chat()).json()["usage"]
    assert answer["usage"]["prompt_tokens"] == alone["prompt_tokens"]
    assert answer["usage"]["completion_tokens"] == 3 * alone["completion_tokens"]

    listed = await gateway.complete(
        prompt=[[5, 6], [7, 8, 9]], n=2, stream=True, stream_options={"include_usage": True}
    )
    ends = {
        event["choices"][0]["index"]: event["choices"][0]["finish_reason"]
        for event in events(listed)
        if event["choices"]
    }
    assert ends == dict.fromkeys(range(4), "stop")
    assert events(listed)[-1]["usage"]["prompt_tokens"] == 5
    assert {request.request_id for request in gateway.fleet.detokenizer.requests[-2:]} == {
        f"{listed.headers['x-tokenpath-request-id']}.{index}" for index in range(2)
    }
    assert gateway.fleet.auth.rows[listed.headers["x-tokenpath-request-id"]].usage.prompt_tokens == 5
    assert (await gateway.complete(prompt=["a"] * 100, n=2)).status_code == 400


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content-type": "text/plain"}, 415),
        ({"content-type": ""}, 415),
        ({"content-type": "application/json; charset=utf-8"}, 200),
        ({"content-type": "application/json"}, 200),
    ],
)
async def test_b017_the_content_type_must_be_json(
    gateway: RunningGateway, headers: dict[str, str], status: int
) -> None:
    body = b'{"model":"%s","prompt":"a"}' % MODEL.encode()
    answer = await gateway.http.post("/v1/completions", content=body, headers=headers)
    assert answer.status_code == status
    if status != 200:
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("body", [b"{", b"[]", b"null", b'"x"', b"", b"\xef\xbb\xbf{}", b"[" * 10_000, b'{"a":"\xff"}'])
async def test_b017_b020_a_body_that_is_no_json_object_is_a_400(gateway: RunningGateway, body: bytes) -> None:
    answer = await gateway.raw(body)
    assert answer.status_code == 400
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


async def test_bodies_above_the_limit_are_refused(gateway: RunningGateway) -> None:
    async def chunks() -> Any:
        for _ in range(40):
            yield b" " * 1024 * 1024

    headers = {"content-type": "application/json"}
    for content in (b" " * (32 * 1024 * 1024 + 1), chunks()):
        answer = await gateway.http.post("/v1/completions", content=content, headers=headers)
        assert answer.status_code == 413
        assert answer.json()["error"]["code"] == "request_too_large"


async def test_b017_b030_a_body_cut_short_harms_nobody(gateway: RunningGateway) -> None:
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\ncontent-type: application/json\r\n"
    )
    for rest in ('transfer-encoding: chunked\r\n\r\n5\r\n{"mod', 'content-length: 100\r\n\r\n{"model', "content-le"):
        with socket.create_connection(("127.0.0.1", gateway.port)) as sock:
            sock.sendall((head + rest).encode())
            await asyncio.sleep(0)
    assert (await gateway.complete()).status_code == 200


async def test_b019_another_model_is_never_served_billed_or_counted(gateway: RunningGateway) -> None:
    for name in ("nope", "", MODEL.lower(), "x" * 100_000):
        answer = await gateway.chat(model=name)
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "model_not_found"
        assert len(answer.content) < 400
    assert (await gateway.raw(b'{"messages":[{"role":"user","content":"x"}]}')).status_code == 400
    assert (await gateway.http.get("/v1/models/nope")).status_code == 404
    assert (await gateway.http.get(f"/v1/models/{MODEL}")).json()["max_model_len"] == MAX_MODEL_LEN
    assert not gateway.fleet.auth.rows
    assert "nope" not in (await gateway.http.get("/metrics")).text


async def test_b020_surrogates_in_both_modes(gateway: RunningGateway) -> None:
    body = '{"model":"%s","stream":%s,"messages":[{"role":"user","content":"%s"}]}'
    for stream in ("true", "false"):
        assert (await gateway.raw((body % (MODEL, stream, r"\ud83d\ude00")).encode())).status_code == 200
        lone = await gateway.raw((body % (MODEL, stream, r"\ud800")).encode())
        assert lone.status_code == 400
        assert "Error" not in lone.json()["error"]["message"]


async def test_b021_the_same_text_in_parts_costs_the_same(gateway: RunningGateway) -> None:
    forms: list[Any] = [
        {"content": "one two"},
        {"content": [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]},
        {"content": "one two", "tool_calls": []},
    ]
    tokens = {
        (await gateway.chat(messages=[{"role": "user", **form}])).json()["usage"]["prompt_tokens"] for form in forms
    }
    assert len(tokens) == 1
    image = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}]
    answer = await gateway.chat(messages=[{"role": "user", "content": image}])
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "messages[0].content[1]")


async def test_b022_a_callers_id_is_only_echoed(gateway: RunningGateway) -> None:
    same = [await gateway.chat({"x-request-id": "mine"}) for _ in range(2)]
    assert [answer.headers["x-request-id"] for answer in same] == ["mine", "mine"]
    assert len({answer.headers["x-tokenpath-request-id"] for answer in same}) == 2
    assert all(request.request_id.startswith("req_") for request in gateway.fleet.detokenizer.requests)
    long = await gateway.chat({"x-request-id": "a" * 50_000})
    assert long.headers["x-request-id"] == "a" * 128
    strange = await gateway.chat({"x-request-id": "a b"})
    assert strange.headers["x-request-id"] == strange.headers["x-tokenpath-request-id"]


@pytest.mark.parametrize("header", ["", "Bearer", "Basic abc", "Bearer wrong", "Bearer " + "x" * 60_000])
async def test_without_a_valid_key_nothing_is_done(gateway: RunningGateway, header: str) -> None:
    for path in ("/v1/chat/completions", "/v1/completions", "/tokenize"):
        answer = await gateway.http.post(path, json={}, headers={"authorization": header})
        assert answer.status_code == 401
        assert answer.json()["error"]["code"] == "invalid_api_key"
        assert "wrong" not in answer.text
    assert not gateway.fleet.router.requests


async def test_the_tenant_chooses_the_salt_and_the_client_can_only_narrow_it(gateway: RunningGateway) -> None:
    other = {"authorization": f"Bearer {OTHER_KEY}"}
    await gateway.chat()
    await gateway.chat(cache_salt="salt-globex")
    await gateway.chat(other)
    mine, narrowed, theirs = [request.cache_salt for request in gateway.fleet.detokenizer.requests]
    assert mine == "salt-acme"
    assert narrowed.startswith("salt-acme.")
    assert theirs == "salt-globex"


async def test_a_client_may_choose_the_mode(gateway: RunningGateway) -> None:
    for mode in ("aggregated", "disaggregated"):
        assert (await gateway.chat({"x-tokenpath-mode": mode})).status_code == 200
    await gateway.chat()
    modes = [Mode.MODE_AGGREGATED, Mode.MODE_DISAGGREGATED, Mode.MODE_UNSPECIFIED]
    assert [request.mode for request in gateway.fleet.router.requests] == modes
    assert (await gateway.chat({"x-tokenpath-mode": "magic"})).status_code == 400


async def test_tokenize_and_detokenize(gateway: RunningGateway) -> None:
    tokens = (await gateway.http.post("/tokenize", json={"model": MODEL, "prompt": "Hello world"})).json()
    assert (tokens["count"], tokens["max_model_len"]) == (len(tokens["tokens"]), MAX_MODEL_LEN)
    assert "".join(tokens["token_strs"]) == "Hello world"
    text = await gateway.http.post("/detokenize", json={"tokens": tokens["tokens"]})
    assert text.json() == {"prompt": "Hello world"}
    chat = (await gateway.http.post("/tokenize", json={"messages": QUESTION})).json()
    assert chat["count"] == (await gateway.chat()).json()["usage"]["prompt_tokens"]
    for bad in ({}, {"prompt": "a", "messages": QUESTION}, {"prompt": 5}):
        assert (await gateway.http.post("/tokenize", json=bad)).status_code == 400
    assert (await gateway.http.post("/detokenize", json={"tokens": [10**6]})).status_code == 400
    assert (await gateway.http.post("/tokenize", json={"prompt": "a", "model": "nope"})).status_code == 404


async def test_logprobs_of_both_endpoints(gateway: RunningGateway) -> None:
    async def script(stream: FakeStream) -> None:
        logprobs = [TokenLogprob(token=b"x", logprob=-1.5, top=[TokenLogprob(token=b"y", logprob=-2.0)])]
        await stream.send(Delta(text="x", tokens=1, finish_reason="length", logprobs=logprobs))
        await stream.end()

    gateway.fleet.detokenizer.script = script
    chat = (await gateway.chat(logprobs=True, top_logprobs=1)).json()["choices"][0]["logprobs"]["content"]
    assert (chat[0]["token"], chat[0]["logprob"], chat[0]["top_logprobs"][0]["token"]) == ("x", -1.5, "y")
    completion = (await gateway.complete(logprobs=1)).json()["choices"][0]["logprobs"]
    assert completion == {
        "tokens": ["x"],
        "token_logprobs": [-1.5],
        "top_logprobs": [{"y": -2.0}],
        "text_offset": [0],
    }
    assert gateway.fleet.detokenizer.engine_request().sampling_params.logprobs == 1


async def test_stop_strings_and_the_prompts_tail_go_to_the_detokenizer(gateway: RunningGateway) -> None:
    await gateway.complete(prompt="a", stop=["x", "y"], include_stop_str_in_output=True)
    request = gateway.fleet.detokenizer.requests[-1]
    assert (list(request.stop), request.include_stop_str_in_output, request.prompt_tail) == (["x", "y"], True, b"")
    assert not gateway.fleet.detokenizer.engine_request().sampling_params.stop


async def test_health_version_and_unknown_paths(gateway: RunningGateway) -> None:
    for path in ("/health", "/ping", "/health/ready", "/version"):
        assert (await gateway.http.get(path, headers={"authorization": ""})).status_code == 200
    unknown, wrong = await gateway.http.get("/v1/nope"), await gateway.http.get("/v1/chat/completions")
    assert (unknown.status_code, wrong.status_code) == (404, 405)
    assert (unknown.json()["error"]["code"], wrong.json()["error"]["code"]) == ("unknown_url", "method_not_allowed")
    assert "takes POST" in wrong.json()["error"]["message"]
    assert all(answer.headers["x-request-id"].startswith("req_") for answer in (unknown, wrong))
    assert set(unknown.json()["error"]) == {"message", "type", "param", "code"}
    assert "tokenpath_gateway_requests_total" in (await gateway.http.get("/metrics")).text


async def test_a_full_queue_is_a_429_that_says_when_to_come_back(gateway: RunningGateway) -> None:
    gateway.fleet.scheduler.failure = Failure(
        grpc.StatusCode.RESOURCE_EXHAUSTED, "the queue is full", code="queue_full", retry_after_ms=2500
    )
    for stream in (False, True):
        answer = await gateway.chat(stream=stream)
        assert answer.status_code == 429
        assert (answer.headers["retry-after"], answer.headers["retry-after-ms"]) == ("3", "2500")
        assert answer.json()["error"]["code"] == "queue_full"
    assert not gateway.fleet.auth.rows
