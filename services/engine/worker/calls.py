"""A Generate call inside the worker, free of protobuf."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from opentelemetry.context import Context

from services.engine.generation import ChoiceOutput
from services.engine.sequence import EngineRequest
from services.platform.context import RequestContext
from services.platform.stage import Stage
from services.platform.telemetry import Telemetry
from tokenpath.v1.common_pb2 import StageReport


@dataclass(frozen=True, slots=True)
class GenerateCall:
    """What the caller wants."""

    engine: EngineRequest
    context: RequestContext
    stream: bool
    """Answer token by token; else only with each choice's end."""
    transfer: Mapping[str, Any]
    """kv_transfer_params_json as it came; empty without."""


@dataclass(frozen=True, slots=True)
class Update:
    """What one choice gained."""

    output: ChoiceOutput
    cached_tokens: int
    """Prompt tokens that nobody had to compute for this request."""
    transfer: str | None = None
    """The hand-off descriptor, with a choice's end."""


Send = Callable[[Sequence[Update]], Awaitable[None]]
"""Passes updates to the caller, who may be slow to take them."""


class CallStages:
    """The stages of one call, each a span and a report; what has ended stays reported when the call fails."""

    def __init__(self, telemetry: Telemetry, parent: Context) -> None:
        self._telemetry = telemetry
        self._parent = parent
        self.reports: list[StageReport] = []

    @contextmanager
    def stage(self, name: str) -> Iterator[Stage]:
        with self._telemetry.stage(name, parent=self._parent) as stage:
            try:
                yield stage
            finally:
                self.reports.append(stage.report())


class Role(Protocol):
    """What makes a worker a prefill or a decode worker."""

    kv_role: str
    """As vLLM calls it: kv_producer or kv_consumer."""
    kv_connector: str

    async def generate(self, call: GenerateCall, stages: CallStages, send: Send) -> None:
        """Serve one call; every choice ends with an update whose output has `finish`. Raises Failure."""
        ...
