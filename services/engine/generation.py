"""The asyncio side of one request: outputs of all its choices in one stream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from services.engine.outcome import Emission
from services.engine.runner import Sampled
from services.engine.sequence import EngineRequest
from services.engine.timing import SequenceTiming
from services.platform.failures import Failure


@dataclass(frozen=True, slots=True)
class ChoiceOutput:
    """What one choice gained since the last look: one token normally, more under backlog, none when it was aborted."""

    index: int
    tokens: tuple[Sampled, ...]
    finish: str
    """"stop", "length" or "abort" with the choice's last output, else ""."""


class Generation:
    """Iterate with `next`, then `close` it whatever happened. Lives on the event loop."""

    def __init__(self, request: EngineRequest, abandon: Callable[[Generation], None]) -> None:
        self.request = request
        self.cached_tokens = 0
        """Prompt tokens that the prefix cache spared the first choice; known with the first output."""
        self.timings: dict[int, SequenceTiming] = {}
        """By choice, once it has ended."""
        self.sequence_ids: dict[int, str] = {}
        """What the core calls each choice."""
        self._abandon = abandon
        self._live = set(request.choices)
        self._tokens: dict[int, list[Sampled]] = {}
        self._finished: dict[int, str] = {}
        self._failure: Failure | None = None
        self._wake: asyncio.Future[None] | None = None

    @property
    def live(self) -> frozenset[int]:
        """Choices that have not ended in the engine."""
        return frozenset(self._live)

    def push(self, index: int, emission: Emission) -> None:
        """Take what the engine says about a choice."""
        if index == self.request.choices[0]:
            self.cached_tokens = emission.cached_tokens
        if emission.sampled is not None:
            self._tokens.setdefault(index, []).append(emission.sampled)
        if emission.finish:
            self._tokens.setdefault(index, [])
            self._finished[index] = emission.finish
        if emission.timing is not None:
            self.timings[index] = emission.timing
        if emission.finish or emission.failure is not None:
            self._live.discard(index)
        if emission.failure is not None:
            self.fail(emission.failure)
        self._notify()

    def fail(self, failure: Failure) -> None:
        """End the stream with `failure`, after what is there already."""
        self._failure = self._failure or failure
        self._notify()

    async def next(self) -> list[ChoiceOutput]:
        """What is ready, waiting until there is something; empty at the end. Raises Failure when a choice failed."""
        while not self._tokens:
            if self._failure is not None:
                raise self._failure
            if not self._live:
                return []
            self._wake = asyncio.get_running_loop().create_future()
            try:
                await self._wake
            finally:
                self._wake = None
        ready, self._tokens = self._tokens, {}
        return [ChoiceOutput(index, tuple(tokens), self._finished.pop(index, "")) for index, tokens in ready.items()]

    def close(self) -> None:
        """Free what is left of it in the engine. Harmless when it has ended."""
        self._abandon(self)

    def _notify(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)
