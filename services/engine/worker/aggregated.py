"""One worker does all: compute the prompt and every token. Also what hand-offs share with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from services.engine.async_engine import AsyncEngine
from services.engine.generation import Generation
from services.engine.sequence import EngineRequest
from services.engine.worker.accounting import account
from services.engine.worker.calls import CallStages, GenerateCall, Send, Update
from services.platform.stage import Stage


async def aggregated(engine: AsyncEngine, call: GenerateCall, stages: CallStages, send: Send) -> None:
    """Serve `call` without any other worker. Raises Failure."""
    with stages.stage("decode") as stage, generating(engine, call.engine, stage) as generation:
        while outputs := await generation.next():
            await send([Update(output, generation.cached_tokens) for output in outputs])


@contextmanager
def generating(engine: AsyncEngine, request: EngineRequest, stage: Stage) -> Iterator[Generation]:
    """Run `request` and account for it in `stage`; leaving early frees what it holds in the engine."""
    generation = engine.submit(request)
    try:
        yield generation
    finally:
        generation.close()
        account(stage, generation)
