"""The two generating endpoints: from the request's head to the last byte of its answer."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from typing import Protocol

import grpc
import orjson
from starlette.types import Receive, Scope, Send

from services.gateway.api.arrival import Arrival
from services.gateway.api.body import read_body
from services.gateway.api.dialect import Dialect
from services.gateway.api.exchange import Exchange, prompt_leg
from services.gateway.attempts import answer
from services.gateway.engine_request import Ask, chosen_seed
from services.gateway.errors import ClientGone, bad_request, http_status
from services.gateway.gateway import Gateway
from services.gateway.journey.view import usage_json
from services.gateway.leash import Leash
from services.gateway.leg import Leg
from services.gateway.pipeline import Job
from services.gateway.prompts import Prompt
from services.gateway.stream.chunks import ChunkEncoder, Identity, UsageMode
from services.gateway.stream.collected import CollectedAnswer
from services.gateway.stream.sse import SseAnswer
from services.gateway.validation.fields import MAX_CHOICES
from services.gateway.validation.sampling import SamplingFields
from services.platform.failures import Failure
from tokenpath.v1.auth_pb2 import Grant, Outcome, SettleRequest
from tokenpath.v1.detokenizer_pb2 import StreamResponse

log = logging.getLogger(__name__)

_THREAD_FROM_BYTES = 256 * 1024  # of a million little things: 30 ms of checking, during which no stream would move
_LAST_WORD_S = 1.0  # an error event to a client that does not read is given up after this
_OUTCOMES = {
    Outcome.OUTCOME_DONE: "done",
    Outcome.OUTCOME_ABORTED: "aborted",
    Outcome.OUTCOME_FAILED: "failed",
    Outcome.OUTCOME_EXPIRED: "expired",
}


class Sink(Protocol):
    """Where an answer goes: SSE or one JSON document."""

    async def consume(self, prompt: int, message: StreamResponse) -> None: ...
    async def finish(self, usage: bytes) -> None: ...
    async def fail(self, failure: Failure) -> None: ...
    def close(self) -> None: ...


class GenerateEndpoint:
    """An ASGI application for one dialect."""

    def __init__(self, gateway: Gateway, dialect: Dialect) -> None:
        self._gateway = gateway
        self._dialect = dialect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(self._gateway, self._dialect, Arrival.of(scope), send)
        with self._gateway.metrics.in_flight.track_inprogress():
            await Generation(self._gateway, self._dialect, exchange).run(receive)


class Generation:
    """One request being answered."""

    def __init__(self, gateway: Gateway, dialect: Dialect, exchange: Exchange) -> None:
        self._gateway = gateway
        self._dialect = dialect
        self._exchange = exchange
        self._grant: Grant | None = None
        self._sink: Sink | None = None
        self._outcome = "rejected"

    async def run(self, receive: Receive) -> None:
        """Answer. Every way out passes through the exchange's last rites once."""
        error: BaseException | None = None
        try:
            await self._serve(receive)
        except ClientGone as gone:
            error = asyncio.CancelledError(gone.message)
        except Failure as failure:
            error = failure
            await self._fail(failure)
        except asyncio.CancelledError as cancelled:
            error = cancelled
            raise
        except Exception as fault:
            error = fault
            log.exception("request %s met a fault of the gateway", self._exchange.arrival.request_id)
            await self._fail(Failure(grpc.StatusCode.INTERNAL, "the gateway failed on this request; please report it"))
        finally:
            if self._sink is not None:
                self._sink.close()
            self._exchange.ended(self._grant, self._outcome, error)

    async def _serve(self, receive: Receive) -> None:
        exchange, gateway = self._exchange, self._gateway
        deadline = exchange.arrival.deadline(gateway.settings.request_timeout_s)
        leg = exchange.leg(deadline)
        key_digest = exchange.arrival.key_digest()
        exchange.recorder.accepted()
        async with Leash(gateway.leashes, deadline) as leash:
            self._grant = grant = await gateway.auth.authorize(leg, key_digest)
            with exchange.own("receive") as stage:
                raw = await read_body(receive, exchange.arrival.headers, gateway.settings.max_body_bytes)
                stage.bytes = len(raw)
                body = await self._parse(raw)
                leash.watch(receive)
                exchange.describe(body)
            with exchange.own("tokenize") as stage:
                prompts = await self._dialect.prompts(body, gateway.tokenizer, gateway.fleet.max_model_len)
                stage.tokens = sum(len(prompt.token_ids) for prompt in prompts)
                self._sink = sink = self._begin(grant, body, prompts)
            await self._generate(leg, leash, sink)
            with exchange.own("respond"):
                await sink.finish(self._usage_json())

    async def _parse(self, raw: bytes) -> SamplingFields:
        if len(raw) <= _THREAD_FROM_BYTES:
            return self._dialect.parse(raw, self._gateway.model)
        return await asyncio.to_thread(self._dialect.parse, raw, self._gateway.model)

    def _begin(self, grant: Grant, body: SamplingFields, prompts: list[Prompt]) -> Sink:
        """Make a job of each prompt, and the place where the answers go."""
        n = body.n or 1
        if n * len(prompts) > MAX_CHOICES:
            raise bad_request(f"n: {len(prompts)} prompts with n={n} make more than {MAX_CHOICES} choices", "n")
        seed = chosen_seed(body)
        mode = self._exchange.arrival.mode(self._gateway.settings.mode)
        self._exchange.jobs = [Job(grant, Ask(body, prompt, seed), mode) for prompt in prompts]
        return self._new_sink(body, n * len(prompts))

    async def _generate(self, leg: Leg, leash: Leash, sink: Sink) -> None:
        """Run all prompts and settle, whatever happens."""
        outcome = Outcome.OUTCOME_FAILED
        try:
            await self._run_prompts(leg, sink)
            outcome = Outcome.OUTCOME_DONE
        except asyncio.CancelledError:
            outcome = _outcome_of(leash.reason)
            raise
        except Failure as failure:
            outcome = _outcome_of(failure)
            raise
        finally:
            self._outcome = _OUTCOMES[outcome]
            await self._settle(leg, outcome)

    async def _run_prompts(self, leg: Leg, sink: Sink) -> None:
        jobs = self._exchange.jobs
        if len(jobs) == 1:
            await self._run_prompt(leg, sink, 0)
            return
        try:
            async with asyncio.TaskGroup() as group:
                for index in range(len(jobs)):
                    group.create_task(self._run_prompt(leg, sink, index))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _run_prompt(self, leg: Leg, sink: Sink, index: int) -> None:
        exchange = self._exchange
        job = exchange.jobs[index]
        own_leg = prompt_leg(leg, job.grant, _salt(job.grant, job.ask.body), index, len(exchange.jobs))

        async def consume(message: StreamResponse) -> None:
            if job.candidate is not None:
                exchange.reply.pod = job.candidate.decode.worker_id
            await sink.consume(index, message)

        await answer(self._gateway.pipeline, own_leg, job, consume)
        exchange.recorder.track_ended(index)

    async def _settle(self, leg: Leg, outcome: Outcome.ValueType) -> None:
        """Once a slot was granted there is a ledger row: before [DONE], or in the background when auth is slow."""
        exchange = self._exchange
        usage = exchange.usage()
        if not usage.prompt_tokens or self._grant is None:
            return
        row = SettleRequest(
            request_id=exchange.arrival.request_id,
            key_id=self._grant.key_id,
            tenant=self._grant.tenant,
            model=self._gateway.model,
            usage=usage,
            outcome=outcome,
            attempts=max(job.attempts for job in exchange.jobs),
            started_unix_ms=exchange.recorder.started_unix_ns // 1_000_000,
        )
        with exchange.recorder.waiting("settle.wait"):
            exchange.receipt = await self._gateway.outbox.settle(leg, row)

    async def _fail(self, failure: Failure) -> None:
        """Tell the client, unless it does not listen."""
        if http_status(failure) >= 500:
            log.warning("request %s failed: %s", self._exchange.arrival.request_id, failure.status.name)
        self._exchange.reply.tried_twice = any(job.attempts > 1 for job in self._exchange.jobs)
        try:
            async with asyncio.timeout(_LAST_WORD_S):
                with self._exchange.own("respond"):
                    await (self._sink.fail(failure) if self._sink is not None else self._exchange.reply.refuse(failure))
        except TimeoutError:
            log.warning("request %s: the client does not read its error", self._exchange.arrival.request_id)

    def _new_sink(self, body: SamplingFields, choices: int) -> Sink:
        exchange, dialect = self._exchange, self._dialect
        logprobs = body.top_logprobs_wanted is not None
        created = exchange.recorder.started_unix_ns // 1_000_000_000
        if not body.stream:
            identity = Identity(exchange.body_id, dialect.object_name, created, self._gateway.model)
            choice_json = dialect.choice_json
            return CollectedAnswer(
                exchange.reply, exchange.recorder, identity, choice_json, body.n or 1, choices, logprobs=logprobs
            )
        identity = Identity(exchange.body_id, dialect.chunk_object_name, created, self._gateway.model)
        encoder = ChunkEncoder(
            identity, dialect.shape, choices, _usage_mode(body), dialect.new_logprobs() if logprobs else None
        )
        return SseAnswer(
            exchange.reply,
            exchange.recorder,
            encoder,
            self._usage_json,
            body.n or 1,
            self._gateway.settings.ping_s,
            self._gateway.metrics.open_streams,
        )

    def _usage_json(self, unsent_tokens: int = 0) -> bytes:
        usage = self._exchange.usage()
        usage.completion_tokens -= unsent_tokens
        return orjson.dumps(usage_json(usage))


def _usage_mode(body: SamplingFields) -> UsageMode:
    options = body.stream_options
    if options is None or not options.include_usage:
        return UsageMode.NONE
    return UsageMode.CONTINUOUS if options.continuous_usage_stats else UsageMode.FINAL


def _outcome_of(reason: Failure | None) -> Outcome.ValueType:
    if reason is None or reason.status is grpc.StatusCode.CANCELLED:
        return Outcome.OUTCOME_ABORTED
    if reason.status is grpc.StatusCode.DEADLINE_EXCEEDED:
        return Outcome.OUTCOME_EXPIRED
    return Outcome.OUTCOME_FAILED


def _salt(grant: Grant, body: SamplingFields) -> str:
    """The tenant's salt; a client's own may narrow it further, never choose another tenant's."""
    if not body.cache_salt:
        return grant.cache_salt
    return f"{grant.cache_salt}.{hashlib.sha256(body.cache_salt.encode()).hexdigest()[:16]}"
