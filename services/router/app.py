"""Wires the router and starts it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from services.platform.fleet import FleetWatcher, StepFeed
from services.platform.redis import connect
from services.platform.server import Registration, Runtime, run_service
from services.router.decision import Decider
from services.router.load_view import LoadView
from services.router.policies.registry import PolicyOptions, make_policy
from services.router.prefix_index import PrefixIndex
from services.router.service import RouterService
from services.router.settings import RouterSettings
from services.router.subscriptions import KvSubscriptions
from tokenpath.v1.router_pb2_grpc import add_RouterServicer_to_server


@asynccontextmanager
async def build(runtime: Runtime[RouterSettings]) -> AsyncIterator[Sequence[Registration]]:
    settings, registry = runtime.settings, runtime.registry
    index = PrefixIndex(settings.index_blocks)
    loads = LoadView(settings.booking_ttl_s)
    options = PolicyOptions(load_weight=settings.load_weight)
    redis = connect(settings.state_url, max_connections=2)
    fleet = FleetWatcher(redis, settings.fleet_poll_s, registry=registry)
    decider = Decider(
        lambda: fleet.workers,
        index,
        loads,
        {role: make_policy(settings.policy, options) for role in ("prefill", "decode")},
        default_mode=settings.mode,
        max_candidates=settings.max_candidates,
        max_hashed_blocks=settings.max_hashed_blocks,
    )
    KvSubscriptions(index, runtime.channels, runtime.tasks, registry).watch(fleet)
    StepFeed(
        runtime.channels,
        runtime.tasks,
        on_load=loads.report,
        on_lost=loads.lost,
        on_gone=loads.forget,
        registry=registry,
    ).watch(fleet)
    service = RouterService(decider, fleet, settings.policy, runtime.telemetry, registry)
    try:
        async with fleet:
            yield [Registration(add_RouterServicer_to_server, service, "tokenpath.v1.Router")]
    finally:
        await redis.aclose()


def main() -> None:
    run_service("router", RouterSettings, build)
