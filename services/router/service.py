"""Answers `tokenpath.v1.Router`."""

from __future__ import annotations

import grpc
from opentelemetry.trace import SpanKind
from prometheus_client import CollectorRegistry, Counter, Histogram

from services.platform.context import RequestContext
from services.platform.failures import Failure, abort_with
from services.platform.fleet import FleetWatcher
from services.platform.stage import Stage
from services.platform.telemetry import Telemetry
from services.router.decision import Ask, Decider, Decision, Mode
from services.router.policies.base import RouteInputs, Scored
from tokenpath.v1 import router_pb2, router_pb2_grpc

_RPC = "tokenpath.v1.Router/Route"
_SPAN_WORKERS = 32  # scores of at most so many workers go on the span

_MODE_OF = {router_pb2.MODE_DISAGGREGATED: Mode.DISAGGREGATED, router_pb2.MODE_AGGREGATED: Mode.AGGREGATED}
_MODE_TO = {mode: wire for wire, mode in _MODE_OF.items()}

Context = grpc.aio.ServicerContext[router_pb2.RouteRequest, router_pb2.RouteResponse]


class RouterService(router_pb2_grpc.RouterServicer):
    def __init__(
        self, decider: Decider, fleet: FleetWatcher, policy: str, telemetry: Telemetry, registry: CollectorRegistry
    ) -> None:
        self._decider = decider
        self._fleet = fleet
        self._policy = policy
        self._telemetry = telemetry
        self._routes = Counter(
            "tokenpath_router_routes_total", "Requests placed", ["policy", "mode"], registry=registry
        )
        self._refused = Counter("tokenpath_router_refused_total", "Requests not placed", ["code"], registry=registry)
        self._fallbacks = Counter(
            "tokenpath_router_fallbacks_total", "Requests placed otherwise than asked", ["kind"], registry=registry
        )
        self._left_out = Counter(
            "tokenpath_router_unreachable_total", "Workers left out of a choice: no connection", registry=registry
        )
        self._cached = Counter(
            "tokenpath_router_predicted_cached_tokens_total",
            "Prompt tokens that the chosen worker was believed to hold",
            registry=registry,
        )
        self._seconds = Histogram(
            "tokenpath_router_decision_seconds",
            "Time of one decision",
            buckets=(0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.2, 1.0),
            registry=registry,
        )

    async def Route(self, request: router_pb2.RouteRequest, context: Context) -> router_pb2.RouteResponse:
        parent = RequestContext.from_grpc(context).trace
        try:
            with self._telemetry.stage("route", parent=parent, kind=SpanKind.SERVER, rpc=_RPC) as stage:
                return self._answer(await self._decider.decide(_ask(request)), stage)
        except Failure as failure:
            self._refused.labels(failure.code).inc()
            return await abort_with(context, failure)

    async def Fleet(self, request: router_pb2.FleetRequest, context: Context) -> router_pb2.FleetResponse:
        workers = sorted(self._fleet.workers.values(), key=lambda worker: (worker.role, worker.worker_id))
        return router_pb2.FleetResponse(workers=[worker.to_proto() for worker in workers], stale=self._fleet.stale)

    def _answer(self, decision: Decision, stage: Stage) -> router_pb2.RouteResponse:
        best = decision.candidates[0]
        first = best.prefill or best.decode
        cached = next(one.view.cached_tokens for one in decision.scores if one.worker == first)
        stage.cached_tokens = cached
        stage.note("policy", self._policy)
        stage.note("mode", decision.mode.value)
        stage.note("candidates", len(decision.candidates))
        if best.prefill is not None:
            stage.note("prefill", best.prefill.worker_id)
        stage.note("decode", best.decode.worker_id)
        if decision.fallback:
            stage.note("fallback", decision.fallback)
            self._fallbacks.labels(decision.fallback).inc()
        if self._fleet.stale:
            stage.note("stale_fleet", True)
        shown = decision.scores[:_SPAN_WORKERS]
        stage.set("tokenpath.route.workers", [one.worker.worker_id for one in shown])
        stage.set("tokenpath.route.scores", [one.score for one in shown])
        stage.set("tokenpath.route.terms", [_terms_text(one) for one in shown])
        response = router_pb2.RouteResponse(
            candidates=[
                router_pb2.Candidate(
                    prefill=pair.prefill.to_proto() if pair.prefill else None,
                    decode=pair.decode.to_proto(),
                    score=pair.score,
                )
                for pair in decision.candidates
            ],
            mode=_MODE_TO[decision.mode],
            policy=self._policy,
            scores=[_score(one) for one in decision.scores],
        )
        self._routes.labels(self._policy, decision.mode.value).inc()
        self._left_out.inc(decision.unreachable)
        self._cached.inc(cached)
        self._seconds.observe(stage.stop() / 1e9)
        response.report.CopyFrom(stage.report())
        return response


def _ask(request: router_pb2.RouteRequest) -> Ask:
    if not request.token_ids:
        raise Failure(
            grpc.StatusCode.INVALID_ARGUMENT, "the prompt has no tokens", code="empty_prompt", param="messages"
        )
    return Ask(
        inputs=RouteInputs(request.request_id, len(request.token_ids), request.max_tokens),
        token_ids=request.token_ids,
        cache_salt=request.cache_salt,
        mode=_MODE_OF.get(request.mode),
        exclude=frozenset(request.exclude_workers),
    )


def _score(one: Scored) -> router_pb2.WorkerScore:
    return router_pb2.WorkerScore(
        worker=one.worker.to_proto(),
        score=one.score,
        terms=[router_pb2.ScoreTerm(name=name, value=value) for name, value in one.terms],
        cached_tokens=one.view.cached_tokens,
    )


def _terms_text(one: Scored) -> str:
    return " ".join(f"{name}={value:.4f}" for name, value in one.terms)
