"""The way of one prompt through the services, stage by stage."""

from __future__ import annotations

from dataclasses import dataclass, field

from services.gateway.clients.detokenizer import Consume, DetokenizerClient
from services.gateway.clients.prefill import Handoff, PrefillClient
from services.gateway.clients.router import RouterClient
from services.gateway.clients.scheduler import SchedulerClient
from services.gateway.engine_request import Ask
from services.gateway.leg import Leg
from services.gateway.metrics import GatewayMetrics
from services.gateway.retry_rules import decode_can_prefill
from services.gateway.usage import PromptUsage
from services.platform.failures import Failure
from tokenpath.v1.auth_pb2 import Grant
from tokenpath.v1.detokenizer_pb2 import StreamResponse
from tokenpath.v1.router_pb2 import Candidate, RouteResponse


@dataclass
class Job:
    """One prompt to answer, and what has become of it so far."""

    grant: Grant
    ask: Ask
    mode: str  # "disaggregated", "aggregated" or "": the router's default
    usage: PromptUsage = field(default_factory=PromptUsage)
    route: RouteResponse | None = None
    candidate: Candidate | None = None  # whose slot was granted
    handoff: Handoff | None = None  # what a prefill worker left behind
    attempts: int = 1
    answered: bool = False  # the client may have seen a part of the answer


@dataclass(frozen=True)
class Pipeline:
    """Stateless; shared by all requests."""

    router: RouterClient
    scheduler: SchedulerClient
    prefill: PrefillClient
    detokenizer: DetokenizerClient
    metrics: GatewayMetrics

    async def run(self, leg: Leg, job: Job, exclude: list[str], consume: Consume) -> None:
        """Route, wait for a slot, prefill, stream. Raises Failure; cancelling it frees everything at once."""
        job.route = await self.router.route(leg, job.ask.prompt, job.mode, exclude)
        async with self.scheduler.slot(leg, job.grant, job.ask, job.route.candidates) as candidate:
            job.candidate = candidate
            job.usage.admitted(len(job.ask.prompt.token_ids))
            descriptor = await self._prefill(leg, job, candidate)

            async def take(message: StreamResponse) -> None:
                job.answered = True
                job.usage.take(message)
                await consume(message)

            await self.detokenizer.stream(leg, candidate.decode.address, job.ask, descriptor, take)

    async def _prefill(self, leg: Leg, job: Job, candidate: Candidate) -> str | None:
        """The hand-off's descriptor. None: the decode worker computes the prompt itself."""
        if not candidate.HasField("prefill"):
            return None
        if job.handoff is not None and job.handoff.fingerprint == candidate.decode.fingerprint:
            return job.handoff.descriptor  # an earlier attempt's pages are still good: nothing is computed twice
        try:
            job.handoff = await self.prefill.prefill(leg, candidate.prefill, job.ask)
        except Failure as failure:
            if not decode_can_prefill(failure):
                raise
            leg.remaining_s()  # a request whose own time is over ends here
            self.metrics.fallbacks.labels("prefill_to_decode").inc()
            return None
        return job.handoff.descriptor
