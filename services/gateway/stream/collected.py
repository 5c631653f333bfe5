"""An answer in one piece: choices are gathered until all have ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson

from services.gateway.api.reply import Reply
from services.gateway.journey.recorder import Recorder
from services.gateway.stream.chunks import Identity
from services.gateway.stream.logprobs import CompletionLogprobs, chat_logprobs
from services.platform.failures import Failure
from tokenpath.v1.detokenizer_pb2 import Delta, StreamResponse


@dataclass
class Choice:
    """What one choice has gained so far."""

    texts: list[str] = field(default_factory=list)
    deltas: list[Delta] = field(default_factory=list)  # kept only for their logprobs
    finish_reason: str = ""

    @property
    def text(self) -> str:
        return "".join(self.texts)


ChoiceJson = Callable[[int, Choice, bool], dict[str, Any]]
"""(index, choice, whether logprobs were asked for) -> its JSON."""


def chat_choice(index: int, choice: Choice, logprobs: bool) -> dict[str, Any]:
    """A choice of a chat completion."""
    tokens = [token for delta in choice.deltas for token in chat_logprobs(delta)]
    return {
        "index": index,
        "message": {"role": "assistant", "content": choice.text, "refusal": None},
        "logprobs": {"content": tokens, "refusal": None} if logprobs else None,
        "finish_reason": choice.finish_reason,
    }


def completion_choice(index: int, choice: Choice, logprobs: bool) -> dict[str, Any]:
    """A choice of a text completion."""
    lists: dict[str, list[Any]] = {}
    gatherer = CompletionLogprobs()
    for delta in choice.deltas if logprobs else ():
        for name, values in gatherer.take(delta).items():
            lists.setdefault(name, []).extend(values)
    return {
        "index": index,
        "text": choice.text,
        "logprobs": lists if logprobs else None,
        "finish_reason": choice.finish_reason,
    }


class CollectedAnswer:
    """The sink of a request that does not stream."""

    def __init__(
        self,
        reply: Reply,
        recorder: Recorder,
        identity: Identity,
        choice_json: ChoiceJson,
        choices_per_prompt: int,
        choices: int,
        *,
        logprobs: bool,
    ) -> None:
        self._reply = reply
        self._recorder = recorder
        self._identity = identity
        self._choice_json = choice_json
        self._n = choices_per_prompt
        self._choices = [Choice() for _ in range(choices)]
        self._logprobs = logprobs

    async def consume(self, prompt: int, message: StreamResponse) -> None:
        """Gather the message's deltas."""
        for delta in message.deltas:
            choice = self._choices[prompt * self._n + delta.index]
            choice.texts.append(delta.text)
            choice.finish_reason = delta.finish_reason or choice.finish_reason
            if self._logprobs:
                choice.deltas.append(delta)
        if message.deltas:
            self._recorder.content_sent(prompt)

    async def finish(self, usage: bytes) -> None:
        """Send the whole answer."""
        choices = [self._choice_json(index, choice, self._logprobs) for index, choice in enumerate(self._choices)]
        body = self._identity.json_head() + b',"choices":' + orjson.dumps(choices) + b',"usage":' + usage + b"}"
        await self._reply.json(200, body)

    async def fail(self, failure: Failure) -> None:
        """An error answer."""
        await self._reply.refuse(failure)

    def close(self) -> None:
        """Nothing runs on its own here."""
