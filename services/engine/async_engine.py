"""The engine as the event loop sees it: one compute thread runs the core, everything else stays here."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import grpc

from services.engine.core import Core, CoreSettings
from services.engine.generation import Generation
from services.engine.kv_events import KvEventLog
from services.engine.outcome import Emission, Load, Outcome
from services.engine.pacing import Pacer
from services.engine.runner import Runner
from services.engine.sequence import EngineRequest
from services.engine.stats import EngineStats
from services.engine.steps import StepFeed, StepRecord
from services.platform.failures import Failure

log = logging.getLogger(__name__)

T = TypeVar("T")

STOP_S = 30.0
"""A compute thread that doesn't end its step within this long is left behind."""


PATIENCE_S = 0.002
"""How long a finished step waits for the event loop to take the one before; then their tokens travel together."""


class AsyncEngine:
    """Runs until `close`. When the compute thread dies, every request fails with INTERNAL and `on_crash` is called."""

    def __init__(
        self,
        runner: Runner,
        settings: CoreSettings,
        *,
        stats: EngineStats,
        events: KvEventLog,
        pacer: Pacer | None = None,
        max_waiting: int = 1024,
        on_crash: Callable[[], None] = lambda: None,
    ) -> None:
        """`max_waiting`: sequences that may wait for the batch; one more is refused."""
        self.settings = settings
        self.steps = StepFeed()
        self.events = events
        self.load = Load()
        self._alive_at = time.monotonic()
        self._runner = runner
        self._stats = stats
        self._max_waiting = max_waiting
        self._on_crash = on_crash
        self._loop = asyncio.get_running_loop()
        self._core = Core(runner, settings, pacer)
        self.load = self._core.load
        self._commands: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._outbox: deque[Outcome] = deque()
        self._taken = threading.Event()
        """Set by the event loop when it has emptied the outbox."""
        self._live: dict[str, Generation] = {}
        self._owners: dict[str, tuple[Generation, int]] = {}
        self._questions: set[asyncio.Future[Any]] = set()
        self._serial = 0
        self._stopping = False
        self._crash: Failure | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    @property
    def crashed(self) -> bool:
        return self._crash is not None

    @property
    def live_requests(self) -> int:
        return len(self._live)

    @property
    def silence_s(self) -> float | None:
        """How long the engine has produced nothing although it has requests; None while it has none."""
        return time.monotonic() - self._alive_at if self._live else None

    def submit(self, request: EngineRequest) -> Generation:
        """Queue a request. The caller closes the generation, whatever happens.

        Failures: INVALID_ARGUMENT (context_length_exceeded), ALREADY_EXISTS (its id is live), RESOURCE_EXHAUSTED
        (too many wait), INTERNAL (the engine is dead). What the runner finds wrong comes out of the generation.
        """
        self._check(request)
        generation = Generation(request, self._abandon)
        # The serial number keeps apart two lives of one request id, so that outputs never mix.
        self._serial += 1
        for index in request.choices:
            sequence_id = f"{request.request_id}/{index}#{self._serial}"
            generation.sequence_ids[index] = sequence_id
            self._owners[sequence_id] = (generation, index)
        if not self._live:
            self._alive_at = time.monotonic()
        self._live[request.request_id] = generation
        self._commands.put(partial(self._core.add, request, tuple(generation.sequence_ids.values())))
        return generation

    def abort(self, ids: Iterable[str]) -> None:
        """End requests ("R") or single choices ("R/2"); they finish with "abort". Unknown ids are nobody's."""
        for name in ids:
            request_id, slash, index = name.rpartition("/")
            if name in self._live:
                self._abort(self._live[name])
            elif slash and request_id in self._live and index.isdecimal():
                self._abort(self._live[request_id], int(index))

    async def clear_cache(self) -> bool:
        """Forget the prefix cache; False while sequences run."""
        return await self._ask(self._core.clear_cache)

    async def close(self) -> None:
        """End every request and the thread, then free the runner."""
        self._stopping = True
        for generation in list(self._live.values()):
            generation.fail(Failure(grpc.StatusCode.UNAVAILABLE, "the worker is shutting down"))
        self._commands.put(lambda: None)
        await asyncio.to_thread(self._thread.join, STOP_S)
        if not self._thread.is_alive():
            self._runner.close()

    def _check(self, request: EngineRequest) -> None:
        if self._crash is not None:
            raise self._crash
        if request.request_id in self._live:
            raise Failure(
                grpc.StatusCode.ALREADY_EXISTS, f"request {request.request_id} is running already", param="request_id"
            )
        longest = self.settings.max_model_len - 1
        if len(request.prompt_ids) > longest:
            raise Failure(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"the prompt has {len(request.prompt_ids)} tokens; this worker takes at most {longest} "
                f"(its context of {self.settings.max_model_len} tokens less one to generate)",
                code="context_length_exceeded",
                param="prompt",
            )
        if len(self._owners) + len(request.choices) > self.settings.limits.max_num_seqs + self._max_waiting:
            raise Failure(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"this worker has {len(self._owners)} sequences running or waiting; try another or come back",
                code="rate_limit_exceeded",
                retry_after_ms=1000,
            )

    def _abort(self, generation: Generation, only: int | None = None) -> None:
        for index in generation.live if only is None else generation.live & {only}:
            self._commands.put(partial(self._core.abort, generation.sequence_ids[index]))

    def _abandon(self, generation: Generation) -> None:
        if self._live.get(generation.request.request_id) is generation:
            del self._live[generation.request.request_id]
            self._abort(generation)

    async def _ask(self, question: Callable[[], T]) -> T:
        """Run `question` on the compute thread, between two steps."""
        if self._crash is not None:
            raise self._crash
        answer: asyncio.Future[T] = self._loop.create_future()

        def set_answer(result: T) -> None:
            if not answer.done():
                answer.set_result(result)

        self._commands.put(lambda: self._call(set_answer, question()))
        self._questions.add(answer)
        try:
            return await answer
        finally:
            self._questions.discard(answer)

    def _deliver(self) -> None:
        """On the event loop: give away what the compute thread has put into the outbox."""
        while self._outbox:
            outcome = self._outbox.popleft()
            self._alive_at = time.monotonic()
            for sequence_id, page in outcome.pages:
                if (owner := self._owners.get(sequence_id)) and owner[0].request.on_page:
                    owner[0].request.on_page(page)
            for emission in outcome.emissions:
                self._emit(emission)
            self.events.publish(outcome.changes, outcome.load)
            self._stats.record(outcome)
            if outcome.step is not None or outcome.load != self.load:
                self.steps.publish(StepRecord(outcome.step, outcome.load))
            self.load = outcome.load

        self._taken.set()

    def _emit(self, emission: Emission) -> None:
        ended = emission.timing is not None or emission.failure is not None
        owner = self._owners.pop(emission.sequence_id, None) if ended else self._owners.get(emission.sequence_id)
        if owner is not None:
            generation, index = owner
            generation.push(index, emission)

    def _run(self) -> None:
        """The compute thread."""
        try:
            while not self._stopping:
                self._take_commands()
                outcome = self._core.step()
                if outcome is None:
                    self._sleep()
                    continue
                if self._outbox:
                    self._taken.wait(PATIENCE_S)
                self._taken.clear()
                self._outbox.append(outcome)
                if len(self._outbox) == 1:  # else the loop has not taken the last ones yet and will find this one too
                    self._call(self._deliver)
        except Exception as error:
            log.error("the engine's compute thread died: %s", type(error).__name__, exc_info=error)
            self._call(self._died, type(error).__name__)

    def _call(self, function: Callable[..., None], *arguments: Any) -> None:
        """From the compute thread: run `function` on the event loop."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(function, *arguments)

    def _take_commands(self) -> None:
        while not self._commands.empty():
            self._commands.get_nowait()()

    def _sleep(self) -> None:
        """Until the next token is due or somebody wants something."""
        due = self._core.next_due()
        timeout = None if due is None else min(max(0.0, due - time.monotonic()), threading.TIMEOUT_MAX)
        try:
            self._commands.get(timeout=timeout)()
        except Empty:
            return

    def _died(self, error_name: str) -> None:
        self._crash = Failure(grpc.StatusCode.INTERNAL, f"the engine has stopped ({error_name}); restart this worker")
        for generation in list(self._live.values()):
            generation.fail(self._crash)
        for question in self._questions:
            if not question.done():
                question.set_exception(self._crash)
        self._on_crash()
