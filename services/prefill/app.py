"""Wires the prefill worker and starts it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from services.engine.worker.assembly import open_worker
from services.engine.worker.page_store import PageStores
from services.engine.worker.parts import WorkerParts
from services.platform.server import Registration, Runtime, run_service
from services.prefill.role import PrefillRole
from services.prefill.settings import PrefillSettings


@asynccontextmanager
async def build(runtime: Runtime[PrefillSettings]) -> AsyncIterator[Sequence[Registration]]:
    """Healthy once the model is loaded."""
    async with PageStores(runtime.settings.kv_url, runtime.registry) as stores:

        def make_role(parts: WorkerParts) -> PrefillRole:
            return PrefillRole(parts, stores.open(parts.record.fingerprint), runtime.registry)

        async with open_worker(runtime, "prefill", make_role) as registrations:
            yield registrations


def main() -> None:
    """Run until SIGTERM."""
    run_service("prefill", PrefillSettings, build)
