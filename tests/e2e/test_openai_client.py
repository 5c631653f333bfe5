"""The official `openai` package, unchanged, against the whole stack."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import openai
import pytest
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from tests.e2e.api import script
from tests.e2e.conftest import MODEL, QUEUE_LIMIT, SLOTS_A_WORKER
from tests.e2e.metrics import metric
from tests.eventually import eventually
from tests.stack import RunningStack

PIECES = ["x", " DE", "F"]
HELLO = script(pieces=PIECES)


def user(prompt: str) -> list[openai.types.chat.ChatCompletionMessageParam]:
    return [{"role": "user", "content": prompt}]


@pytest.fixture
def sent() -> list[str]:
    """The path of every HTTP request that the client has sent."""
    return []


@pytest.fixture
async def client(scripted_stack: RunningStack, sent: list[str]) -> AsyncIterator[AsyncOpenAI]:
    async def note(request: httpx.Request) -> None:
        sent.append(request.url.path)

    http = DefaultAsyncHttpxClient(verify=False, event_hooks={"request": [note]})
    async with AsyncOpenAI(
        base_url=f"{scripted_stack.gateway_url}/v1", api_key=scripted_stack.api_key, http_client=http
    ) as client:
        yield client


class TestChat:
    async def test_whole(self, client: AsyncOpenAI) -> None:
        answer = await client.chat.completions.create(model=MODEL, messages=user(HELLO), seed=1, temperature=0.5)
        assert answer.choices[0].message.content == "x DEF"
        assert answer.choices[0].message.role == "assistant"
        assert answer.choices[0].finish_reason == "stop"
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 4
        assert answer.usage.prompt_tokens_details is not None
        assert answer._request_id is not None
        assert answer._request_id.startswith("req_")

    async def test_streamed(self, client: AsyncOpenAI) -> None:
        stream = await client.chat.completions.create(
            model=MODEL, messages=user(HELLO), stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == "x DEF"
        assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None, None, None, "stop"]
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == 4

    async def test_the_stream_helper_builds_the_same_message(self, client: AsyncOpenAI) -> None:
        async with client.chat.completions.stream(model=MODEL, messages=user(HELLO), n=2) as stream:
            kinds = [event.type async for event in stream]
            final = await stream.get_final_completion()
        assert kinds.count("content.delta") >= 6
        assert [choice.message.content for choice in final.choices] == ["x DEF", "x DEF"]
        assert [choice.finish_reason for choice in final.choices] == ["stop", "stop"]

    @pytest.mark.parametrize("streamed", [False, True])
    async def test_logprobs(self, client: AsyncOpenAI, streamed: bool) -> None:
        if streamed:
            async with client.chat.completions.stream(
                model=MODEL, messages=user(HELLO), logprobs=True, top_logprobs=2
            ) as stream:
                choice = (await stream.get_final_completion()).choices[0]
        else:
            answer = await client.chat.completions.create(
                model=MODEL, messages=user(HELLO), logprobs=True, top_logprobs=2
            )
            choice = answer.choices[0]
        assert choice.logprobs is not None
        assert choice.logprobs.content is not None
        assert [token.token for token in choice.logprobs.content] == PIECES
        assert all(len(token.top_logprobs) == 2 for token in choice.logprobs.content)


class TestCompletions:
    async def test_whole_with_a_list_of_prompts(self, client: AsyncOpenAI) -> None:
        answer = await client.completions.create(model=MODEL, prompt=[HELLO, script(pieces=["F"])], n=2, logprobs=1)
        assert [choice.text for choice in answer.choices] == ["x DEF", "x DEF", "F", "F"]
        assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
        assert answer.choices[0].logprobs is not None
        assert answer.choices[0].logprobs.tokens == PIECES

    async def test_streamed(self, client: AsyncOpenAI) -> None:
        stream = await client.completions.create(model=MODEL, prompt=HELLO, stream=True, stop=["F"])
        chunks = [chunk async for chunk in stream]
        assert "".join(chunk.choices[0].text for chunk in chunks) == "x DE"
        assert chunks[-1].choices[0].finish_reason == "stop"
        assert all(chunk.object == "text_completion" for chunk in chunks)


async def test_models(client: AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == [MODEL]
    assert (await client.models.retrieve(MODEL)).id == MODEL


class TestErrors:
    async def test_401(self, client: AsyncOpenAI) -> None:
        with pytest.raises(openai.AuthenticationError) as raised:
            await client.with_options(api_key="wrong").models.list()
        assert raised.value.code == "invalid_api_key"

    async def test_404(self, client: AsyncOpenAI) -> None:
        with pytest.raises(openai.NotFoundError) as raised:
            await client.chat.completions.create(model="nope", messages=user(HELLO))
        assert raised.value.code == "model_not_found"
        assert raised.value.request_id is not None

    @pytest.mark.parametrize("stream", [False, True])
    async def test_400(self, client: AsyncOpenAI, stream: bool) -> None:
        with pytest.raises(openai.BadRequestError) as raised:
            await client.chat.completions.create(
                model=MODEL,
                messages=user(HELLO),
                stream=stream,
                tools=[{"type": "function", "function": {"name": "f"}}],
            )
        assert raised.value.param == "tools"
        assert raised.value.type == "invalid_request_error"

    async def test_an_error_inside_a_stream(self, client: AsyncOpenAI) -> None:
        stream = await client.chat.completions.create(
            model=MODEL, messages=user(script(pieces=PIECES, repeat=5, fail_after=3)), stream=True
        )
        texts = [(await anext(stream)).choices[0].delta.content for _ in range(3)]
        assert texts == PIECES
        with pytest.raises(openai.APIError) as raised:
            await anext(stream)
        assert raised.value.type == "server_error"

    async def test_429_says_when_to_come_back(self, client: AsyncOpenAI, scripted_stack: RunningStack) -> None:
        async with full_stack(scripted_stack, client):
            with pytest.raises(openai.RateLimitError) as raised:
                await client.with_options(max_retries=0).chat.completions.create(model=MODEL, messages=user(HELLO))
            assert raised.value.type == "rate_limit_error"
            assert int(raised.value.response.headers["retry-after"]) >= 1
            waiting = asyncio.create_task(client.chat.completions.create(model=MODEL, messages=user(HELLO)))
        assert (await waiting).choices[0].message.content == "x DEF"


class TestRetries:
    """The client retries what may go away; no layer of ours multiplies that."""

    async def test_a_bad_request_is_sent_once(self, client: AsyncOpenAI, sent: list[str]) -> None:
        with pytest.raises(openai.BadRequestError):
            await client.chat.completions.create(model=MODEL, messages=user("SCRIPT:{no}"))
        assert len(sent) == 1

    async def test_what_two_workers_could_not_do_is_not_tried_again(self, client: AsyncOpenAI, sent: list[str]) -> None:
        """The gateway has asked another worker already, and says so."""
        with pytest.raises(openai.InternalServerError):
            await client.chat.completions.create(model=MODEL, messages=user(script(pieces=PIECES, fail_after=0)))
        assert len(sent) == 1


@asynccontextmanager
async def full_stack(stack: RunningStack, client: AsyncOpenAI) -> AsyncIterator[None]:
    """Every slot is taken and every place in the queue."""
    hanging = script(pieces=PIECES, hang_after=1)

    async def hold(n: int) -> None:
        async for _ in await client.chat.completions.create(model=MODEL, messages=user(hanging), n=n, stream=True):
            pass

    def says(name: str) -> float:
        return metric(stack, "scheduler", f"tokenpath_scheduler_{name}")

    tasks = [asyncio.create_task(hold(SLOTS_A_WORKER)) for _ in range(2)]
    try:
        # Only then the others: one that came first would take a slot, and a request for all of a worker's would wait.
        await eventually(lambda: says("slots_used") == 2 * SLOTS_A_WORKER, "every slot is taken")
        tasks += [asyncio.create_task(hold(1)) for _ in range(QUEUE_LIMIT)]
        await eventually(lambda: says("queue_length") == QUEUE_LIMIT, "the queue is full")
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
