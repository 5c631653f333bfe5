"""At most two tries, the second on another decode worker, and only while the client has seen nothing."""

from __future__ import annotations

import grpc

from services.gateway.clients.detokenizer import Consume
from services.gateway.leg import Leg
from services.gateway.pipeline import Job, Pipeline
from services.gateway.retry_rules import another_worker_may_help
from services.platform.failures import Failure


async def answer(pipeline: Pipeline, leg: Leg, job: Job, consume: Consume) -> None:
    """Run the pipeline. Raises Failure: the first attempt's when no other worker is left."""
    try:
        await pipeline.run(leg, job, [], consume)
    except Failure as failure:
        failed = job.candidate
        if job.answered or failed is None or not another_worker_may_help(failure):
            raise
        pipeline.metrics.fallbacks.labels("decode_retry").inc()
        job.attempts = 2
        await _second(pipeline, leg.for_attempt(2), job, failed.decode.worker_id, failure, consume)


async def _second(pipeline: Pipeline, leg: Leg, job: Job, failed_worker: str, first: Failure, consume: Consume) -> None:
    job.candidate = None
    try:
        await pipeline.run(leg, job, [failed_worker], consume)
    except Failure as failure:
        # No slot was granted this time: what went wrong at first says more than "nobody else is there".
        nobody_left = job.candidate is None and failure.status is grpc.StatusCode.UNAVAILABLE
        raise (first if nobody_left else failure) from None
