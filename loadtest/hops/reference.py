"""What one gRPC hop costs on this machine, now: the yardstick for the path of seven services."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

import grpc
import psutil
import uvloop

from loadtest.hops.processes import child, first_line
from loadtest.percentiles import percentile
from services.platform.limits import client_options
from tokenpath.v1 import auth_pb2, auth_pb2_grpc, detokenizer_pb2, detokenizer_pb2_grpc

UNARY_CALLS = 500
STREAMS = 32
MESSAGES = 500  # a stream
DEADLINE_S = 60.0


@dataclass(frozen=True)
class HopCost:
    """One hop between two processes, both written with grpc.aio on uvloop as the services are."""

    unary_ms_p50: float
    unary_ms_p99: float
    stream_messages_per_s: float  # 32 streams of one token a message
    cpu_us_per_message: float  # both ends together


def measure_hop() -> HopCost:
    """Start the plain server, measure it, end it. A second or two."""
    with child("loadtest.hops.reference_server") as server:
        port = int(first_line(server))
        return uvloop.run(_measure(f"127.0.0.1:{port}", psutil.Process(server.pid)))


async def _measure(address: str, server: psutil.Process) -> HopCost:
    async with grpc.aio.insecure_channel(address, options=client_options()) as channel:
        latencies = await _unary(auth_pb2_grpc.AuthStub(channel))
        stub = detokenizer_pb2_grpc.DetokenizerStub(channel)
        await _streams(stub)  # warm
        cpu_before, began = _cpu_s(server), time.perf_counter()
        await _streams(stub)
        wall_s = time.perf_counter() - began
        cpu_s = _cpu_s(server) - cpu_before
    messages = STREAMS * MESSAGES
    return HopCost(
        unary_ms_p50=percentile(latencies, 50) or 0.0,
        unary_ms_p99=percentile(latencies, 99) or 0.0,
        stream_messages_per_s=messages / wall_s,
        cpu_us_per_message=cpu_s / messages * 1e6,
    )


async def _unary(stub: auth_pb2_grpc.AuthStub) -> Sequence[float]:
    request = auth_pb2.AuthorizeRequest(request_id="req_reference", key_digest=b"0" * 32)
    latencies = []
    for _ in range(UNARY_CALLS):
        began = time.perf_counter()
        await stub.Authorize(request, timeout=DEADLINE_S)  # type: ignore[misc]
        latencies.append((time.perf_counter() - began) * 1e3)
    return latencies[UNARY_CALLS // 10 :]


async def _streams(stub: detokenizer_pb2_grpc.DetokenizerStub) -> None:
    request = detokenizer_pb2.StreamRequest(request_id="req_reference", choices=MESSAGES)

    async def one() -> None:
        async for _ in stub.Stream(request, timeout=DEADLINE_S):  # type: ignore[attr-defined]
            pass

    await asyncio.gather(*(one() for _ in range(STREAMS)))


def _cpu_s(server: psutil.Process) -> float:
    times = server.cpu_times()
    return times.user + times.system + time.process_time()
