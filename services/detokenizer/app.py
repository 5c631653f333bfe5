"""Wires the detokenizer and starts it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from services.detokenizer.service import DetokenizerService
from services.detokenizer.settings import DetokenizerSettings
from services.platform.server import Registration, Runtime, run_service
from services.tokenization.tokenizer import Tokenizer
from tokenpath.v1 import detokenizer_pb2_grpc


@asynccontextmanager
async def build(runtime: Runtime[DetokenizerSettings]) -> AsyncIterator[Sequence[Registration]]:
    """Loads the tokenizer first, so that the service is only healthy once it can turn tokens into text."""
    tokenizer = await asyncio.to_thread(Tokenizer.load, runtime.settings.model)
    yield [
        Registration(
            add=detokenizer_pb2_grpc.add_DetokenizerServicer_to_server,
            servicer=DetokenizerService(runtime, tokenizer),
            full_name="tokenpath.v1.Detokenizer",
        )
    ]


def main() -> None:
    """Run until SIGTERM."""
    run_service("detokenizer", DetokenizerSettings, build)
