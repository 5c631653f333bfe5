"""Our workers behind somebody else's gateway: the engine contract holds without our control plane."""

from __future__ import annotations

import time
from collections.abc import Iterator

import httpx
import pytest

from tests.e2e.api import Answer, Api, Json, Mode, read_answer, script
from tests.e2e.conftest import MODEL
from tests.e2e.metrics import engine_is_idle, metric, samples
from tests.e2e.smg_gateway import Smg, pair, smg_gateway
from tests.eventually import eventually
from tests.stack import RunningStack

PIECES = ["x", " DE", "F"]
ABORTED_S = 5.0


@pytest.fixture(scope="module")
def together(scripted_stack: RunningStack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Smg]:
    """One decode worker does all."""
    options = ("--worker-urls", f"grpc://{scripted_stack.address('decode-0')}")
    with smg_gateway(tmp_path_factory.mktemp("smg-together"), 1, *options) as smg:
        yield smg


@pytest.fixture(scope="module")
def apart(scripted_stack: RunningStack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Smg]:
    """Prefill and decode apart."""
    options = pair(scripted_stack.address("prefill-0"), scripted_stack.address("decode-0"))
    with smg_gateway(tmp_path_factory.mktemp("smg-apart"), 2, *options) as smg:
        yield smg


@pytest.fixture(params=["together", "apart"])
def smg(request: pytest.FixtureRequest) -> Smg:
    """Both ways."""
    gateway: Smg = request.getfixturevalue(request.param)
    return gateway


def chat(prompt: str, **fields: object) -> Json:
    return {"model": MODEL, "messages": [{"role": "user", "content": prompt}], **fields}


def ask(smg: Smg, prompt: str, **fields: object) -> Answer:
    response = httpx.post(f"{smg.url}/v1/chat/completions", json=chat(prompt, **fields), timeout=20)
    assert response.status_code == 200, response.text
    return read_answer(response)


@pytest.mark.parametrize("stream", [False, True])
def test_chat(smg: Smg, stream: bool) -> None:
    options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    answer = ask(smg, script(pieces=PIECES), **options)
    assert (answer.text, answer.finish_reason) == ("x DEF", "stop")
    assert answer.usage is not None
    assert answer.usage["completion_tokens"] == 4


async def test_it_sees_the_prompt_that_our_gateway_sees(apart: Smg, api: Api) -> None:
    """Same tokenizer and chat template, so also the same pages: what one gateway computed the other finds cached."""
    prompt = script(pieces=PIECES) + " common ground" * 30
    ours = await api.ask(Mode("chat", False), prompt)
    theirs = ask(apart, prompt)
    assert theirs.usage is not None
    assert ours.usage is not None
    assert theirs.usage["prompt_tokens"] == ours.usage["prompt_tokens"]


def test_the_second_time_the_prompt_is_cached(smg: Smg) -> None:
    prompt = script(pieces=PIECES) + " once and again" * 30
    ask(smg, prompt)
    usage = ask(smg, prompt).usage
    assert usage is not None
    assert usage["prompt_tokens_details"]["cached_tokens"] >= 64


def test_several_choices_with_logprobs(smg: Smg) -> None:
    answer = ask(smg, script(pieces=PIECES), n=2, max_tokens=2, logprobs=True, top_logprobs=1)
    assert answer.texts == ["x DE", "x DE"]
    assert answer.finish == {0: ["length"], 1: ["length"]}
    for choice in answer.chunks[0]["choices"]:
        assert [token["token"] for token in choice["logprobs"]["content"]] == ["x", " DE"]


def test_pages_travel_between_the_workers(apart: Smg, scripted_stack: RunningStack) -> None:
    """The decode worker goes on from fetched pages: the hand-off went through smg untouched."""
    before = pages(scripted_stack)
    answer = ask(apart, f"{time.time_ns()} " * 20 + script(pieces=PIECES))
    after = pages(scripted_stack)
    assert answer.text == "x DEF"
    assert after["fetched"] > before.get("fetched", 0)
    assert {name for name in after if after[name] != before.get(name)} <= {"fetched", "hit"}
    assert apart.metric("smg_pd_kv_connector_mode_total") > 0


def pages(stack: RunningStack) -> dict[str, float]:
    """Pages of hand-offs that the decode worker has met, by what became of them."""
    named = "tokenpath_kv_pages_total{result="
    values = samples(stack.metrics_url("decode-0"))
    return {name.split('"')[1]: value for name, value in values.items() if name.startswith(named)}


async def test_a_client_that_leaves_frees_the_engine(smg: Smg, scripted_stack: RunningStack) -> None:
    """smg sends Abort; the sequences end long before their 2,000 tokens."""
    prompt = script(pieces=["x"], repeat=2000, itl_ms=10)
    body = chat(prompt, stream=True, n=2, max_tokens=2000)
    async with (
        httpx.AsyncClient(verify=False, timeout=20) as client,
        client.stream("POST", f"{smg.url}/v1/chat/completions", json=body) as response,
    ):
        events = response.aiter_lines()
        while '"x"' not in await anext(events):
            pass
        assert metric(scripted_stack, "decode-0", "vllm:num_requests_running") == 2
    for worker in ("decode-0", "prefill-0"):
        await eventually(lambda worker=worker: engine_is_idle(scripted_stack, worker), f"{worker} is idle", ABORTED_S)


def test_a_request_that_the_engine_refuses_is_an_error(smg: Smg) -> None:
    body = chat("SCRIPT:{no json}")
    answer = httpx.post(f"{smg.url}/v1/chat/completions", json=body, timeout=20)
    assert 400 <= answer.status_code < 600
    assert "SCRIPT" in answer.text
