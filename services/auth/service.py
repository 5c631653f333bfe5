"""Answers `tokenpath.v1.Auth`."""

from __future__ import annotations

import time

import grpc
from opentelemetry.trace import SpanKind
from prometheus_client import CollectorRegistry, Counter
from redis.asyncio import Redis

from services.auth.keys import DIGEST_BYTES, KeyRecord, find_key
from services.auth.ledger import Ledger, LedgerReceipt, LedgerRow
from services.auth.prices import PriceTable
from services.auth.state import State
from services.platform.context import RequestContext
from services.platform.failures import Failure, abort_with
from services.platform.stage import Stage
from services.platform.telemetry import Telemetry
from tokenpath.v1 import auth_pb2, auth_pb2_grpc

_AUTHORIZE = "tokenpath.v1.Auth/Authorize"
_SETTLE = "tokenpath.v1.Auth/Settle"
_MAX_TEXT_BYTES = 512  # of each text that goes into a ledger row

_OUTCOMES = {
    auth_pb2.OUTCOME_DONE: "done",
    auth_pb2.OUTCOME_ABORTED: "aborted",
    auth_pb2.OUTCOME_FAILED: "failed",
    auth_pb2.OUTCOME_EXPIRED: "expired",
}

AuthorizeContext = grpc.aio.ServicerContext[auth_pb2.AuthorizeRequest, auth_pb2.Grant]
SettleContext = grpc.aio.ServicerContext[auth_pb2.SettleRequest, auth_pb2.Receipt]


class AuthService(auth_pb2_grpc.AuthServicer):
    """Knows keys by their digests only. Nothing here logs; failures are counted by status."""

    def __init__(self, redis: Redis, prices: PriceTable, telemetry: Telemetry, registry: CollectorRegistry) -> None:
        self._redis = redis
        self._ledger = Ledger(redis)
        self._state = State(registry)
        self._prices = prices
        self._telemetry = telemetry
        self._calls = Counter(
            "tokenpath_auth_calls", "Answered calls by status", ["method", "status"], registry=registry
        )
        self._rows = Counter("tokenpath_auth_ledger_rows", "Ledger rows by outcome", ["outcome"], registry=registry)
        self._duplicates = Counter(
            "tokenpath_auth_ledger_duplicates", "Settlements of requests that had a row", registry=registry
        )
        self._cost = Counter("tokenpath_auth_ledger_nano_usd", "Cost of all rows written", registry=registry)

    async def Authorize(self, request: auth_pb2.AuthorizeRequest, context: AuthorizeContext) -> auth_pb2.Grant:
        parent = RequestContext.from_grpc(context).trace
        try:
            with self._telemetry.stage("auth", parent=parent, kind=SpanKind.SERVER, rpc=_AUTHORIZE) as stage:
                grant = await self._grant(request.key_digest, stage)
        except Failure as failure:
            self._calls.labels("authorize", failure.status.name).inc()
            return await abort_with(context, failure)
        self._calls.labels("authorize", "OK").inc()
        return grant

    async def Settle(self, request: auth_pb2.SettleRequest, context: SettleContext) -> auth_pb2.Receipt:
        parent = RequestContext.from_grpc(context).trace
        try:
            with self._telemetry.stage("settle", parent=parent, kind=SpanKind.SERVER, rpc=_SETTLE) as stage:
                receipt = await self._settle(request, stage)
        except Failure as failure:
            self._calls.labels("settle", failure.status.name).inc()
            return await abort_with(context, failure)
        self._calls.labels("settle", "OK").inc()
        return receipt

    async def _grant(self, digest: bytes, stage: Stage) -> auth_pb2.Grant:
        if len(digest) != DIGEST_BYTES:
            raise _unauthenticated()
        with stage.part("redis"):
            record = await self._state.ask(lambda: find_key(self._redis, digest), advice="try again")
        if record is None:
            raise _unauthenticated()
        return _grant(record, stage)

    async def _settle(self, request: auth_pb2.SettleRequest, stage: Stage) -> auth_pb2.Receipt:
        row = self._row(request)
        with stage.part("redis"):
            receipt = await self._state.ask(
                lambda: self._ledger.settle(row), advice="settle again with the same request_id"
            )
        if receipt.duplicate:
            self._duplicates.inc()
        else:
            self._rows.labels(row.outcome).inc()
            self._cost.inc(row.cost_nano_usd)
        return _receipt(receipt, stage)

    def _row(self, request: auth_pb2.SettleRequest) -> LedgerRow:
        if not request.request_id:
            raise _invalid("request_id", "must not be empty")
        for name in ("request_id", "key_id", "tenant", "model"):
            if len(getattr(request, name).encode()) > _MAX_TEXT_BYTES:
                raise _invalid(name, f"is longer than {_MAX_TEXT_BYTES} bytes")
        if request.outcome not in _OUTCOMES:
            raise _invalid("outcome", "must say how the request ended")
        usage = request.usage
        try:
            cost = self._prices.cost_nano_usd(
                request.model,
                prompt=usage.prompt_tokens,
                cached=usage.cached_tokens,
                completion=usage.completion_tokens,
            )
        except ValueError as error:
            raise _invalid("usage", str(error)) from None
        return LedgerRow(
            request_id=request.request_id,
            key_id=request.key_id,
            tenant=request.tenant,
            model=request.model,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            completion_tokens=usage.completion_tokens,
            outcome=_OUTCOMES[request.outcome],
            attempts=request.attempts,
            cost_nano_usd=cost,
            price_version=self._prices.version,
            started_unix_ms=request.started_unix_ms,
            settled_unix_ms=time.time_ns() // 1_000_000,
        )


def _grant(record: KeyRecord, stage: Stage) -> auth_pb2.Grant:
    stage.note("tenant", record.tenant)
    stage.note("tier", record.tier)
    stage.note("key_id", record.key_id)
    return auth_pb2.Grant(
        key_id=record.key_id,
        tenant=record.tenant,
        tier=record.tier,
        priority=record.priority,
        cache_salt=record.cache_salt,
        report=stage.report(),
    )


def _receipt(receipt: LedgerReceipt, stage: Stage) -> auth_pb2.Receipt:
    stage.note("row_id", receipt.row_id)
    stage.note("duplicate", receipt.duplicate)
    stage.note("cost_nano_usd", receipt.cost_nano_usd)
    stage.note("price_version", receipt.price_version)
    return auth_pb2.Receipt(
        row_id=receipt.row_id,
        duplicate=receipt.duplicate,
        cost_nano_usd=receipt.cost_nano_usd,
        price_version=receipt.price_version,
        report=stage.report(),
    )


def _unauthenticated() -> Failure:
    # The same words for every reason: which keys exist is nobody's business.
    return Failure(grpc.StatusCode.UNAUTHENTICATED, "Incorrect API key provided.", code="invalid_api_key")


def _invalid(field: str, problem: str) -> Failure:
    return Failure(grpc.StatusCode.INVALID_ARGUMENT, f"Settle: {field} {problem}", param=field)
