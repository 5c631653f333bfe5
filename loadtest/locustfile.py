"""Chat users for Locust: `make load`, or `locust -f loadtest/locustfile.py --host http://127.0.0.1:8080`.

A closed loop: a user sends its next request when the last answer has ended and it has thought for a while. So a
slow system is asked less, and its queues look shorter than under arrivals that don't wait. What the loop itself
adds is measured as dispatch lag: how much later than planned a user woke up.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from typing import Any

import gevent
from locust import User, events, task

from loadtest.events import fire
from loadtest.measure import measure
from loadtest.models import served_model
from loadtest.options import load_options
from loadtest.prompts import FixedPrompts, PromptMix
from loadtest.records import Record, RecordWriter
from loadtest.sse_client import SseClient

PATH = "/v1/chat/completions"
OPTIONS = load_options()
FIXED = tuple(filter(None, OPTIONS.prompts.read_text().splitlines())) if OPTIONS.prompts else ()
STARTED_S = time.monotonic()
WRITER = RecordWriter(OPTIONS.records) if OPTIONS.records else None
_user_numbers = itertools.count()


class ChatUser(User):
    """Asks, reads the whole answer as it streams, thinks, asks again."""

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        number = next(_user_numbers)
        seed = OPTIONS.seed + number
        self._client = SseClient(self.host or "", OPTIONS.timeout_s)
        self._prompts = FixedPrompts(FIXED, number) if FIXED else PromptMix(seed)
        self._random = random.Random(seed)
        self._due_s = time.monotonic()

    def on_start(self) -> None:
        self._model = OPTIONS.model or served_model(self.host or "", OPTIONS.api_key)
        self._due_s = time.monotonic()

    def wait_time(self) -> float:
        pause = self._random.expovariate(1 / OPTIONS.think_s) if OPTIONS.think_s else 0.0
        self._due_s = time.monotonic() + pause
        return pause

    @task
    def chat(self) -> None:
        lag_s = max(0.0, time.monotonic() - self._due_s)
        sent_s = time.monotonic() - STARTED_S
        headers = {"authorization": f"Bearer {OPTIONS.api_key}"} if OPTIONS.api_key else {}
        measurement = measure(self._client.post(PATH, self._body(), headers))
        fire(self.environment.events.request, PATH, measurement)
        if WRITER:
            WRITER.write(Record(sent_s, lag_s, measurement))

    def on_stop(self) -> None:
        self._client.close()

    def _body(self) -> dict[str, Any]:
        return {
            "model": self._model,
            "messages": next(self._prompts),
            "max_tokens": OPTIONS.max_tokens,
            "temperature": OPTIONS.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }


@events.init.add_listener  # type: ignore[no-untyped-call]
def run_for_all_of_the_time(**_: object) -> None:
    """The loop's clock stands still while modules are imported, and the run's time would count from before them."""
    gevent.get_hub().loop.update_now()


@events.init.add_listener  # type: ignore[no-untyped-call]
def end_well_when_interrupted(environment: Any, **_: object) -> None:
    """The first Ctrl-C ends the run as its time does: answers end, reports are written. The second leaves at once."""
    presses = itertools.count()

    def interrupted() -> None:
        if next(presses):
            os._exit(0)
        environment.runner.quit()
        if environment.web_ui:
            environment.web_ui.stop()

    gevent.signal_handler(signal.SIGINT, interrupted)


if WRITER:
    # Not `quitting`: answers that were running then are still written.
    events.quit.add_listener(lambda **_: WRITER.close())  # type: ignore[no-untyped-call]
