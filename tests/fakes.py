"""The services below the gateway, without their insides: real gRPC servers that answer as a test tells them."""

import asyncio
import hashlib
import json
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import httpx
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from smg_grpc_proto.generated import vllm_engine_pb2, vllm_engine_pb2_grpc

from services.gateway.app import build
from services.gateway.settings import GatewaySettings
from services.platform.context import RequestContext
from services.platform.deadlines import remaining_s
from services.platform.failures import Failure, abort_with
from services.platform.limits import server_options
from services.platform.server import Runtime, serving
from tokenpath.v1.auth_pb2 import AuthorizeRequest, Grant, Receipt, SettleRequest
from tokenpath.v1.auth_pb2_grpc import AuthServicer, add_AuthServicer_to_server
from tokenpath.v1.common_pb2 import StagePart, StageReport, StageReports, Usage, WorkerInfo
from tokenpath.v1.detokenizer_pb2 import Delta, StreamEnd, StreamRequest, StreamResponse
from tokenpath.v1.detokenizer_pb2_grpc import DetokenizerServicer, add_DetokenizerServicer_to_server
from tokenpath.v1.router_pb2 import Candidate, FleetResponse, Mode, RouteRequest, RouteResponse, ScoreTerm, WorkerScore
from tokenpath.v1.router_pb2_grpc import RouterServicer, add_RouterServicer_to_server
from tokenpath.v1.scheduler_pb2 import AdmitRequest, AdmitUpdate, Granted, Queued
from tokenpath.v1.scheduler_pb2_grpc import SchedulerServicer, add_SchedulerServicer_to_server

MODEL = "SmolLM2-135M-Instruct"
KEY = "tp-key-of-acme"
OTHER_KEY = "tp-key-of-globex"
MAX_MODEL_LEN = 256

Script = Callable[["FakeStream"], Awaitable[None]]


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def report(stage: str, milliseconds: float, started_unix_ns: int | None = None, **parts: float) -> StageReport:
    """A stage's account; without a start it ended just now."""
    duration = int(milliseconds * 1e6)
    start = started_unix_ns if started_unix_ns is not None else time.time_ns() - duration
    return StageReport(
        stage=stage,
        service=stage,
        instance=f"{stage}-0",
        start_unix_ns=start,
        duration_ns=duration,
        parts=[StagePart(name=name, duration_ns=int(value * 1e6)) for name, value in parts.items()],
    )


@dataclass
class FakeAuth(AuthServicer):
    """`rows` are the settled rows by request id; `settle_failures` counts down before a settle succeeds."""

    tenants: dict[bytes, str] = field(
        default_factory=lambda: {
            hashlib.sha256(KEY.encode()).digest(): "acme",
            hashlib.sha256(OTHER_KEY.encode()).digest(): "globex",
        }
    )
    rows: dict[str, SettleRequest] = field(default_factory=dict)
    failure: Failure | None = None
    settle_failures: int = 0
    settle_failure: Failure = field(
        default_factory=lambda: Failure(grpc.StatusCode.UNAVAILABLE, "the ledger does not answer")
    )
    settle_delay_s: float = 0.0
    authorized: int = 0
    deadlines: list[float | None] = field(default_factory=list)
    traces: list[str] = field(default_factory=list)

    async def Authorize(self, request: AuthorizeRequest, context: Any) -> Grant:
        self.authorized += 1
        self.deadlines.append(remaining_s(context))
        self.traces.append(_traceparent(context))
        if self.failure is not None:
            await abort_with(context, self.failure)
        tenant = self.tenants.get(request.key_digest)
        if tenant is None:
            await abort_with(context, Failure(grpc.StatusCode.UNAUTHENTICATED, "no such API key"))
        salt = f"salt-{tenant}"
        return Grant(key_id=f"key-{tenant}", tenant=tenant, priority=1, cache_salt=salt, report=report("auth", 0.1))

    async def Settle(self, request: SettleRequest, context: Any) -> Receipt:
        if self.settle_failures:
            self.settle_failures -= 1
            await abort_with(context, self.settle_failure)
        await asyncio.sleep(self.settle_delay_s)
        duplicate = request.request_id in self.rows
        self.rows.setdefault(request.request_id, request)
        return Receipt(row_id="1-0", duplicate=duplicate, cost_nano_usd=1234, report=report("settle", 0.1))


@dataclass
class FakeRouter(RouterServicer):
    """Answers with `candidates` whose decode worker is not excluded."""

    candidates: list[Candidate]
    mode: int = Mode.MODE_DISAGGREGATED
    stale: bool = False
    requests: list[RouteRequest] = field(default_factory=list)
    failure: Failure | None = None

    async def Route(self, request: RouteRequest, context: Any) -> RouteResponse:
        self.requests.append(request)
        if self.failure is not None:
            await abort_with(context, self.failure)
        fit = [each for each in self.candidates if each.decode.worker_id not in request.exclude_workers]
        if not fit:
            await abort_with(context, Failure(grpc.StatusCode.UNAVAILABLE, "no worker can serve now"))
        scores = [WorkerScore(worker=each.decode, score=1.0, terms=[ScoreTerm(name="load", value=-1)]) for each in fit]
        return RouteResponse(
            candidates=fit, mode=self.mode, policy="round_robin", scores=scores, report=report("route", 0.1)
        )

    async def Fleet(self, request: Any, context: Any) -> FleetResponse:
        workers = [worker for each in self.candidates for worker in (each.prefill, each.decode) if worker.worker_id]
        return FleetResponse(workers=workers, stale=self.stale)


@dataclass
class FakeScheduler(SchedulerServicer):
    """`slots` may be held at once; `held` are held now."""

    slots: int = 1000
    held: int = 0
    queued: int = 0
    requests: list[AdmitRequest] = field(default_factory=list)
    freed: asyncio.Condition = field(default_factory=asyncio.Condition)
    failure: Failure | None = None

    async def Admit(self, request: AdmitRequest, context: Any) -> None:
        self.requests.append(request)
        if self.failure is not None:
            await abort_with(context, self.failure)
        started = time.time_ns()
        await context.write(AdmitUpdate(queued=Queued(position=self.queued, queue_length=self.queued)))
        self.queued += 1
        try:
            async with self.freed:
                await self.freed.wait_for(lambda: self.held < self.slots)
        finally:
            self.queued -= 1
        self.held += 1
        try:
            waited_ms = (time.time_ns() - started) / 1e6
            await context.write(AdmitUpdate(granted=Granted(candidate=0, report=report("queue", waited_ms))))
            await asyncio.Event().wait()
        finally:
            self.held -= 1
            async with self.freed:
                self.freed.notify_all()


@dataclass
class FakePrefill(vllm_engine_pb2_grpc.VllmEngineServicer):
    """Answers with a descriptor after `delay_s`, or with `failure`."""

    delay_s: float = 0.0
    failure: Failure | None = None
    requests: list[vllm_engine_pb2.GenerateRequest] = field(default_factory=list)
    contexts: list[RequestContext] = field(default_factory=list)
    running: int = 0

    async def Generate(self, request: vllm_engine_pb2.GenerateRequest, context: Any) -> None:
        self.requests.append(request)
        self.contexts.append(RequestContext.from_grpc(context))
        started = time.time_ns()
        self.running += 1
        try:
            await asyncio.sleep(self.delay_s)
        finally:
            self.running -= 1
        if self.failure is not None:
            await abort_with(context, self.failure)
        duration_ms = (time.time_ns() - started) / 1e6
        stages = StageReports(
            reports=[
                report("prefill", duration_ms, started, compute=duration_ms / 2),
                report("kv_publish", duration_ms / 4, started),
            ]
        )
        context.set_trailing_metadata((("tokenpath-stages-bin", stages.SerializeToString()),))
        descriptor = json.dumps({"transport": "redis", "request_id": request.request_id})
        await context.write(
            vllm_engine_pb2.GenerateResponse(
                complete=vllm_engine_pb2.GenerateComplete(finish_reason="length", kv_transfer_params_json=descriptor)
            )
        )


@dataclass
class FakeStream:
    """One Detokenizer.Stream call, for a script to answer."""

    request: StreamRequest
    engine_request: vllm_engine_pb2.GenerateRequest
    context: Any
    started_unix_ns: int = field(default_factory=time.time_ns)
    tokens: int = 0

    async def send(self, *deltas: Delta) -> None:
        """One message."""
        self.tokens += sum(delta.tokens for delta in deltas)
        await self.context.write(StreamResponse(deltas=deltas))

    async def say(self, text: str, index: int = 0, finish: str = "") -> None:
        """One token."""
        await self.send(Delta(index=index, text=text, tokens=1, finish_reason=finish))

    async def end(self, cached_tokens: int = 0) -> None:
        """The closing message, with reports that cover the stream."""
        duration_ms = (time.time_ns() - self.started_unix_ns) / 1e6
        usage = Usage(
            prompt_tokens=len(self.engine_request.tokenized.input_ids),
            completion_tokens=self.tokens,
            cached_tokens=cached_tokens,
        )
        reports = [
            report("decode", duration_ms * 0.8, self.started_unix_ns, queue=0.0, decode_compute=duration_ms * 0.5),
            report("detokenize", duration_ms, self.started_unix_ns),
        ]
        await self.context.write(StreamResponse(end=StreamEnd(usage=usage, reports=reports)))


async def three_words(stream: FakeStream) -> None:
    """The default answer."""
    for word in ("Paris", " it", " is"):
        for index in range(stream.request.choices):
            await stream.say(word, index)
    for index in range(stream.request.choices):
        await stream.say(".", index, "stop")
    await stream.end()


async def endless(stream: FakeStream) -> None:
    """A token every millisecond until the client leaves."""
    while True:
        await stream.say(" x")
        await asyncio.sleep(0.001)


def failing(failure: Failure, after_tokens: int = 0) -> Script:
    """Some tokens, then a failure."""

    async def script(stream: FakeStream) -> None:
        for _ in range(after_tokens):
            await stream.say(" x")
        await abort_with(stream.context, failure)

    return script


@dataclass
class FakeDetokenizer(DetokenizerServicer):
    """Runs `script` for every stream, or the one of `scripts` for the stream's decode address."""

    script: Script = three_words
    scripts: dict[str, Script] = field(default_factory=dict)
    requests: list[StreamRequest] = field(default_factory=list)
    contexts: list[RequestContext] = field(default_factory=list)
    deadlines: list[float | None] = field(default_factory=list)
    traces: list[str] = field(default_factory=list)
    running: int = 0

    async def Stream(self, request: StreamRequest, context: Any) -> None:  # type: ignore[override]
        self.requests.append(request)
        self.contexts.append(RequestContext.from_grpc(context))
        self.deadlines.append(remaining_s(context))
        self.traces.append(_traceparent(context))
        engine_request = vllm_engine_pb2.GenerateRequest.FromString(request.engine_request)
        self.running += 1
        try:
            script = self.scripts.get(request.decode_address, self.script)
            await script(FakeStream(request, engine_request, context))
        finally:
            self.running -= 1

    def engine_request(self, number: int = -1) -> vllm_engine_pb2.GenerateRequest:
        """What the decode worker would have got."""
        return vllm_engine_pb2.GenerateRequest.FromString(self.requests[number].engine_request)


class Fleet:
    """All of them on one port. `decode-0` is the first choice, `decode-1` the second, `prefill-0` goes before both."""

    def __init__(self, address: str) -> None:
        self.address = address
        prefill = worker("prefill-0", address)
        self.auth = FakeAuth()
        self.router = FakeRouter(
            [Candidate(prefill=prefill, decode=worker(f"decode-{i}", f"decode-{i}:1")) for i in (0, 1)]
        )
        self.scheduler = FakeScheduler()
        self.prefill = FakePrefill()
        self.detokenizer = FakeDetokenizer()
        self.health = HealthServicer()

    def reset(self) -> None:
        """As new: what the last test told or saw is forgotten."""
        fresh = Fleet(self.address)
        for name in ("auth", "router", "scheduler", "prefill", "detokenizer"):
            vars(getattr(self, name)).update(vars(getattr(fresh, name)))

    def aggregated(self) -> None:
        """From now on one worker does both."""
        self.router.mode = Mode.MODE_AGGREGATED
        for candidate in self.router.candidates:
            candidate.ClearField("prefill")

    @property
    def idle(self) -> bool:
        """Nothing runs and nothing is held."""
        return not (self.scheduler.held or self.scheduler.queued or self.prefill.running or self.detokenizer.running)

    @property
    def row(self) -> SettleRequest:
        """The one ledger row."""
        (row,) = self.auth.rows.values()
        return row


def worker(worker_id: str, address: str, fingerprint: str = "fp") -> WorkerInfo:
    return WorkerInfo(
        worker_id=worker_id,
        generation="1",
        role=worker_id.split("-")[0],
        address=address,
        model=MODEL,
        fingerprint=fingerprint,
        block_size=16,
        max_num_seqs=8,
        max_model_len=MAX_MODEL_LEN,
    )


@asynccontextmanager
async def running_fleet() -> AsyncIterator[Fleet]:
    """The fakes, serving."""
    server = grpc.aio.server(options=server_options())
    port = server.add_insecure_port("127.0.0.1:0")
    fleet = Fleet(f"127.0.0.1:{port}")
    add_AuthServicer_to_server(fleet.auth, server)
    add_RouterServicer_to_server(fleet.router, server)
    add_SchedulerServicer_to_server(fleet.scheduler, server)
    add_DetokenizerServicer_to_server(fleet.detokenizer, server)
    vllm_engine_pb2_grpc.add_VllmEngineServicer_to_server(fleet.prefill, server)
    health_pb2_grpc.add_HealthServicer_to_server(fleet.health, server)
    await fleet.health.set("", health_pb2.HealthCheckResponse.SERVING)
    await server.start()
    try:
        yield fleet
    finally:
        await server.stop(0)


@dataclass
class RunningGateway:
    """The real gateway on a real port, with the fakes below it."""

    fleet: Fleet
    runtime: Runtime[GatewaySettings]
    port: int
    http: httpx.AsyncClient

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def chat(self, headers: Mapping[str, str] | None = None, **body: Any) -> httpx.Response:
        """POST a chat of one user message; `body` adds to it or overrides it."""
        question = {"model": MODEL, "messages": [{"role": "user", "content": "capital of France?"}]}
        return await self.http.post("/v1/chat/completions", json=question | body, headers=headers)

    async def complete(self, headers: Mapping[str, str] | None = None, **body: Any) -> httpx.Response:
        """POST a completion."""
        return await self.http.post("/v1/completions", json={"model": MODEL, "prompt": "Paris"} | body, headers=headers)

    async def raw(self, body: bytes, path: str = "/v1/chat/completions", **headers: str) -> httpx.Response:
        """POST bytes as they are."""
        given = {"content-type": "application/json"} | {key.replace("_", "-"): value for key, value in headers.items()}
        return await self.http.post(path, content=body, headers=given)

    async def metric(self, name: str) -> float:
        """The value of one line of /metrics; 0 when it is not there."""
        lines = (await self.http.get("/metrics")).text.splitlines()
        return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(name + " ")), 0.0)


@asynccontextmanager
async def running_gateway(**settings: Any) -> AsyncIterator[RunningGateway]:
    """A gateway and its fleet; `settings` are GatewaySettings fields."""
    async with running_fleet() as fleet:
        port = free_port()
        chosen: dict[str, Any] = {
            "instance": "gateway-test",
            "http_port": port,
            "drain_s": 5,
            **{f"{peer}_address": fleet.address for peer in ("auth", "router", "scheduler", "detokenizer")},
            **settings,
        }
        headers = {"authorization": f"Bearer {KEY}"}
        base_url = f"http://127.0.0.1:{port}"
        # The client outlives the gateway, so that a test can look at how the gateway stops.
        async with (
            httpx.AsyncClient(base_url=base_url, headers=headers, trust_env=False, timeout=20) as http,
            serving("gateway", GatewaySettings(**chosen), build) as runtime,
        ):
            yield RunningGateway(fleet, runtime, port, http)


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """The JSON events of an SSE answer."""
    return [
        json.loads(line.removeprefix("data: "))
        for line in response.text.split("\n")
        if line.startswith("data: ") and line != "data: [DONE]"
    ]


def _traceparent(context: Any) -> str:
    return str(dict(context.invocation_metadata()).get("traceparent", ""))
