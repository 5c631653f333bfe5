"""Whose request it is: caller-chosen ids, keys, and the bill."""

from __future__ import annotations

import asyncio
import json
from uuid import uuid4

import pytest

from tests.e2e.api import MODES, Api, Mode, script, sse_chunks
from tests.e2e.ledger import settled_row

STREAM = Mode("chat", True)


class TestB022:
    """B022: a caller's x-request-id is only echoed; requests that share one have nothing else in common."""

    async def test_two_streams_with_one_id(self, api: Api) -> None:
        mine = {"x-request-id": "same"}
        prompts = [script(pieces=[piece], repeat=20, itl_ms=5) for piece in ("x", "F")]
        one, two = await asyncio.gather(*(api.ask(STREAM, prompt, headers=mine, max_tokens=50) for prompt in prompts))
        assert (one.text, two.text) == ("x" * 20, "F" * 20)
        assert one.headers["x-request-id"] == two.headers["x-request-id"] == "same"
        assert one.request_id != two.request_id

    async def test_leaving_one_leaves_the_other(self, api: Api) -> None:
        mine = {"x-request-id": "same"}
        staying = asyncio.create_task(
            api.ask(STREAM, script(pieces=["x"], repeat=40, itl_ms=5), headers=mine, max_tokens=50)
        )
        async with api.open(STREAM, script(pieces=["F"], repeat=400, itl_ms=5), headers=mine) as leaving:
            await anext(leaving.aiter_raw())
        again = await api.ask(STREAM, script(pieces=["F"], repeat=3), headers=mine)
        assert again.text == "FFF"
        assert (await staying).text == "x" * 40

    @pytest.mark.parametrize("theirs", ["x" * 129, "x" * 50_000, "no spaces", "tab\tbed"])
    async def test_ids_that_are_not_echoed_as_they_came(self, api: Api, theirs: str) -> None:
        answer = await api.ask(STREAM, script(pieces=["x"]), headers={"x-request-id": theirs})
        echoed = answer.headers["x-request-id"]
        assert answer.text == "x"
        assert len(echoed) <= 128
        assert echoed == answer.request_id or theirs.startswith(echoed)

    async def test_an_id_of_a_megabyte(self, api: Api) -> None:
        """HTTP servers bound their headers: a 4xx or a served request, and the connection's end, but no crash."""
        answer = await api.http.post(
            "/v1/chat/completions", json=api.body(STREAM, script(pieces=["x"])), headers={"x-request-id": "x" * 2**20}
        )
        assert answer.status_code in (200, 400, 413, 431)
        assert (await api.ask(STREAM, script(pieces=["x"]))).text == "x"


@pytest.mark.parametrize("mode", MODES, ids=str)
class TestB044:
    """B044: cached tokens are 0 for a cold prompt and never more than the prompt; the ledger says what usage says."""

    async def test_cold_then_warm(self, api: Api, mode: Mode) -> None:
        said = script(text="one two three four five six seven")
        fresh = f"{uuid4().hex} " * 4  # at the very beginning: a page is 16 tokens
        messages = [{"role": "system", "content": fresh}, {"role": "user", "content": said}]
        prompt = messages if mode.endpoint == "chat" else fresh + said
        cold = await api.ask(mode, prompt, max_tokens=5)
        warm = await api.ask(mode, prompt, max_tokens=5)
        for answer in (cold, warm):
            usage = answer.usage
            assert usage is not None
            assert usage["completion_tokens"] == 5
            assert usage["total_tokens"] == usage["prompt_tokens"] + 5
            row = await settled_row(api.stack, answer.request_id)
            assert row["outcome"] == "done"
            assert int(row["prompt_tokens"]) == usage["prompt_tokens"]
            assert int(row["completion_tokens"]) == usage["completion_tokens"]
            assert int(row["cached_tokens"]) == usage["prompt_tokens_details"]["cached_tokens"]
        assert cold.usage is not None
        assert warm.usage is not None
        assert cold.usage["prompt_tokens_details"]["cached_tokens"] == 0
        assert 0 < warm.usage["prompt_tokens"] - warm.usage["prompt_tokens_details"]["cached_tokens"] <= 16

    async def test_one_row_for_several_choices(self, api: Api, mode: Mode) -> None:
        answer = await api.ask(mode, script(pieces=["x", " DE"]), n=3)
        row = await settled_row(api.stack, answer.request_id)
        assert answer.usage is not None
        assert int(row["completion_tokens"]) == answer.usage["completion_tokens"] == 9

    async def test_the_stream_is_charged_without_a_usage_chunk(self, api: Api, mode: Mode) -> None:
        fields = {"stream_options": None} if mode.stream else {}
        answer = await api.ask(mode, script(pieces=["x", " DE"]), **fields)
        row = await settled_row(api.stack, answer.request_id)
        assert int(row["completion_tokens"]) == 3


async def test_a_client_that_leaves_pays_for_what_was_made(api: Api) -> None:
    """One row with the tokens so far; not nothing, and not all of them."""
    async with api.open(STREAM, script(pieces=["x"], repeat=500, itl_ms=10), max_tokens=500) as response:
        events = response.aiter_raw()
        for _ in range(5):
            await anext(events)
    row = await settled_row(api.stack, response.headers["x-tokenpath-request-id"])
    assert row["outcome"] == "aborted"
    assert 5 <= int(row["completion_tokens"]) < 100
    journey = await api.journey(row["request_id"])
    assert journey["outcome"] == "aborted"


@pytest.mark.parametrize("mode", MODES, ids=str)
async def test_a_failed_request_is_on_the_bill_as_failed(api: Api, mode: Mode) -> None:
    answer = await api.ask(mode, script(pieces=["x"], repeat=10, fail_after=4))
    row = await settled_row(api.stack, answer.request_id)
    assert row["outcome"] == "failed"
    assert int(row["completion_tokens"]) <= 4


@pytest.mark.parametrize("key", [None, "", "Bearer", "Bearer nope", "Basic abc", "Bearer " + "k" * 5000])
async def test_without_a_key(api: Api, key: str | None) -> None:
    headers = {"authorization": key or "", "content-type": "application/json"}
    if key is None:
        del api.http.headers["authorization"], headers["authorization"]
    body = json.dumps(api.body(STREAM, script(pieces=["x"]))).encode()
    answer = await api.send("chat", body, headers)
    assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")
    assert "nope" not in answer.raw.decode()


async def test_an_id_is_not_taken_over_between_endpoints(api: Api) -> None:
    """A journey is found by our id and by the body's id alike."""
    answer = await api.ask(Mode("completions", True), script(pieces=["x"]))
    by_body = await api.journey(answer.chunks[0]["id"])
    assert by_body == await api.journey(answer.request_id)
    assert sse_chunks(answer.raw) == answer.chunks
