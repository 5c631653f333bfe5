"""One request to a generating endpoint: its clock, its spans, and its last rites (metrics, journey, root span)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from opentelemetry import trace
from opentelemetry.trace import SpanKind
from starlette.types import Send

from services.gateway.api.arrival import Arrival
from services.gateway.api.dialect import Dialect
from services.gateway.api.reply import Reply
from services.gateway.clients.router import MODE_NAMES
from services.gateway.gateway import Gateway
from services.gateway.journey.recorder import SHARED, Recorder
from services.gateway.journey.view import Ending, journey_json
from services.gateway.leg import Leg
from services.gateway.pipeline import Job
from services.gateway.usage import total
from services.gateway.validation.sampling import SamplingFields
from services.platform.context import RequestContext
from services.platform.stage import Stage
from tokenpath.v1.auth_pb2 import Grant, Receipt
from tokenpath.v1.common_pb2 import Usage

_REQUEST_FIELDS = (
    "max_tokens", "temperature", "top_p", "top_k", "seed", "frequency_penalty", "presence_penalty",
)  # fmt: skip


class Exchange:
    """Made on arrival; `ended` is called once, after the last byte."""

    def __init__(self, gateway: Gateway, dialect: Dialect, arrival: Arrival, send: Send) -> None:
        self.recorder = Recorder()
        self.arrival = arrival
        self.dialect = dialect
        self.body_id = dialect.id_prefix + arrival.request_id
        self.jobs: list[Job] = []
        self.receipt: Receipt | None = None
        self._gateway = gateway
        self.root = gateway.telemetry.stage(
            "request",
            parent=arrival.trace,
            kind=SpanKind.SERVER,
            span_name=dialect.operation,
            attributes={
                "gen_ai.operation.name": dialect.operation,
                "gen_ai.provider.name": "tokenpath",
                "gen_ai.response.id": self.body_id,
                "tokenpath.request.id": arrival.request_id,
            },
        )
        self.reply = Reply(send, arrival, self.root.trace_id)

    def leg(self, deadline: float) -> Leg:
        """The way to services that know nothing of tenants yet."""
        context = RequestContext(self.arrival.request_id, 1, "", self.root.context)
        return Leg(self._gateway.telemetry, self.recorder, context, deadline)

    @contextmanager
    def own(self, name: str, track: int = SHARED) -> Iterator[Stage]:
        """The gateway's own work: a journey entry and a span."""
        telemetry = self._gateway.telemetry
        with self.recorder.own(name, track) as entry, telemetry.stage(name, parent=self.root.context) as stage:
            yield stage
            entry.attributes |= {"bytes": str(stage.bytes), "tokens": str(stage.tokens)}

    def describe(self, body: SamplingFields) -> None:
        """Name the root span after the (now known to be ours) model, and say what was asked."""
        trace.get_current_span(self.root.context).update_name(f"{self.dialect.operation} {body.model}")
        self.root.set("gen_ai.request.model", body.model)
        self.root.set("gen_ai.request.stream", bool(body.stream))
        self.root.set("gen_ai.request.choice.count", body.n or 1)
        for name in _REQUEST_FIELDS:
            value = body.token_limit if name == "max_tokens" else getattr(body, name)
            if value is not None:
                self.root.set(f"gen_ai.request.{name}", value)

    def usage(self) -> Usage:
        """Counts so far, over all prompts."""
        return total([job.usage for job in self.jobs])

    def ended(self, grant: Grant | None, outcome: str, error: BaseException | None) -> None:
        """Metrics, journey and root span of the finished request; they all tell the same numbers."""
        total_ns = self.recorder.elapsed_ns()
        self.root.stop()  # writing things down is no part of the request
        status = self.reply.status or 499
        usage = self.usage()
        self._count(status, total_ns, usage)
        if self.jobs:
            self._keep_journey(grant, outcome, total_ns, usage)
            self._describe_answer(usage)
        self.root.set("http.response.status_code", status)
        self.root.set("gen_ai.latency.e2e", total_ns / 1e9)
        self.root.end(None if 400 <= status < 499 else error)  # a client's own mistake is no error of the server

    def _count(self, status: int, total_ns: int, usage: Usage) -> None:
        metrics, endpoint = self._gateway.metrics, self.dialect.endpoint
        metrics.requests.labels(endpoint, str(status)).inc()
        metrics.duration.labels(endpoint).observe(total_ns / 1e9)
        first_ns = self.recorder.first_content_ns
        if first_ns is not None:
            metrics.first_token.labels(endpoint).observe(first_ns / 1e9)
            if usage.completion_tokens > 1:
                per_token = (total_ns - first_ns) / 1e9 / (usage.completion_tokens - 1)
                metrics.per_token.labels(endpoint).observe(per_token)
        for kind, count in (("input", usage.prompt_tokens), ("output", usage.completion_tokens)):
            metrics.tokens.labels(kind).inc(count)

    def _keep_journey(self, grant: Grant | None, outcome: str, total_ns: int, usage: Usage) -> None:
        route = next((job.route for job in self.jobs if job.route is not None), None)
        ending = Ending(
            request_id=self.arrival.request_id,
            trace_id=self.root.trace_id,
            instance=self._gateway.telemetry.instance,
            model=self._gateway.model,
            mode=MODE_NAMES.get(route.mode, "") if route is not None else "",
            outcome=outcome,
            usage=usage,
            cost_nano_usd=self.receipt.cost_nano_usd if self.receipt is not None else None,
            total_ns=total_ns,
            route=route,
        )
        if grant is not None:
            # Put together when somebody asks: the next request shouldn't wait for it.
            journey = partial(journey_json, self.recorder, ending)
            self._gateway.journeys.put(grant.tenant, self.arrival.request_id, journey)

    def _describe_answer(self, usage: Usage) -> None:
        self.root.set("gen_ai.response.model", self._gateway.model)
        reasons = [reason for job in self.jobs for _, reason in sorted(job.usage.finish_reasons.items())]
        self.root.set("gen_ai.response.finish_reasons", reasons)
        self.root.set("gen_ai.usage.input_tokens", usage.prompt_tokens)
        self.root.set("gen_ai.usage.output_tokens", usage.completion_tokens)
        self.root.set("gen_ai.usage.cache_read.input_tokens", usage.cached_tokens)
        if self.recorder.first_content_ns is not None:
            first_s = self.recorder.first_content_ns / 1e9
            self.root.set("gen_ai.latency.time_to_first_token", first_s)
            self.root.set("gen_ai.response.time_to_first_chunk", first_s)
        for stage, name in (("queue", "in_queue"), ("prefill", "in_model_prefill"), ("decode", "in_model_decode")):
            duration_ns = self.recorder.reported_ns(stage)
            if duration_ns:
                self.root.set(f"gen_ai.latency.time_{name}", duration_ns / 1e9)


def prompt_leg(leg: Leg, grant: Grant, salt: str, track: int, prompts: int) -> Leg:
    """The way of one prompt. Several prompts are several requests to the workers, each with its own id."""
    request_id = leg.context.request_id if prompts == 1 else f"{leg.context.request_id}.{track}"
    context = RequestContext(request_id, 1, salt, leg.context.trace)
    return Leg(leg.telemetry, leg.recorder, context, leg.deadline, track)
