"""What every downstream call of a request needs: who it is for, until when, and where its time is written down."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import grpc
from opentelemetry.trace import SpanKind

from services.gateway.errors import deadline_exceeded
from services.gateway.journey.recorder import SHARED, Entry, Recorder
from services.platform.context import RequestContext
from services.platform.deadlines import within
from services.platform.failures import Failure, failure_of
from services.platform.stage import Stage
from services.platform.stage_trailer import stages_of
from services.platform.telemetry import Telemetry


@dataclasses.dataclass(frozen=True)
class OpenCall:
    """A call being made: its span, its line in the journey, and the metadata to send."""

    stage: Stage
    entry: Entry
    metadata: tuple[tuple[str, str | bytes], ...]

    def take_reports(self, trailing: Iterable[tuple[str, str | bytes]] | None) -> None:
        """Keep the stage reports that a worker sent with the end of its call, good or bad."""
        self.entry.reports.extend(stages_of(trailing))


@dataclasses.dataclass(frozen=True)
class Leg:
    """One request's (or one of its prompts') way through the services. `deadline` is on the monotonic clock."""

    telemetry: Telemetry
    recorder: Recorder
    context: RequestContext
    deadline: float
    track: int = SHARED

    def remaining_s(self, cap_s: float | None = None) -> float:
        """The deadline for the next call, in seconds. Raises 504 when nothing is left: no work is begun then."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise deadline_exceeded()
        return left if cap_s is None else within(left, cap_s)

    def without_deadline(self) -> Leg:
        """For work that must be done after the request's own time: its bill."""
        return dataclasses.replace(self, deadline=math.inf)

    def off_the_record(self) -> Leg:
        """For work after the journey was written: it keeps its spans and leaves the journey alone."""
        return dataclasses.replace(self, recorder=Recorder())

    def for_attempt(self, attempt: int) -> Leg:
        """The same way, tried again."""
        return dataclasses.replace(self, context=dataclasses.replace(self.context, attempt=attempt))

    @contextmanager
    def own(self, name: str) -> Iterator[None]:
        """Time the gateway's own work as a journey entry and a span."""
        with self.recorder.own(name, self.track), self.telemetry.stage(name, parent=self.context.trace):
            yield

    @contextmanager
    def call(self, stage_name: str, *, rpc: str, address: str, peer: str) -> Iterator[OpenCall]:
        """Time one RPC as a client span and a journey entry; its failure leaves as a Failure that names `peer`."""
        with (
            self.recorder.call(stage_name, self.track) as entry,
            self.telemetry.stage(
                stage_name, parent=self.context.trace, kind=SpanKind.CLIENT, rpc=rpc, address=address
            ) as stage,
        ):
            opened = OpenCall(stage, entry, self.context.with_trace(stage.context).metadata())
            try:
                yield opened
            except grpc.aio.AioRpcError as error:
                opened.take_reports(error.trailing_metadata())
                # CANCELLED can only be the peer's doing: ours leaves as a CancelledError.
                cut_off = error.code() is grpc.StatusCode.CANCELLED
                failure = _ended_by(peer) if cut_off else failure_of(error, peer)
                entry.error = failure.code or failure.status.name.lower()
                raise failure from None
            except Failure as failure:
                entry.error = failure.code or failure.status.name.lower()
                raise
            except asyncio.CancelledError:
                # grpc.aio may raise this also when the peer cancelled the call: then nobody cancelled this task.
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    entry.error = "cancelled"
                    raise
                entry.error = "unavailable"
                raise _ended_by(peer) from None


def _ended_by(peer: str) -> Failure:
    return Failure(grpc.StatusCode.UNAVAILABLE, f"{peer} ended the call; try again", code="service_unavailable")
