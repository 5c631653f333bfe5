"""Asking a process whether it can serve now."""

from __future__ import annotations

import socket

import grpc
import httpx
from grpc_health.v1 import health_pb2, health_pb2_grpc

PROBE_S = 1.0


def answers(probe: str) -> bool:
    """Whether the process behind `redis://`, `grpc://` or `http://` host:port serves. Takes PROBE_S at most."""
    kind, _, rest = probe.partition("://")
    match kind:
        case "redis":
            return _redis(rest)
        case "grpc":
            return _grpc(rest)
        case "http":
            return _http(probe)
    raise ValueError(f"unknown probe {probe}")


def _redis(address: str) -> bool:
    try:
        with _connect(address) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
    except OSError:
        return False


def _connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=PROBE_S)


def _grpc(address: str) -> bool:
    try:
        _connect(address).close()  # a refused connection is told by the socket at a tenth of what a channel costs
    except OSError:
        return False
    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        try:
            reply = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=PROBE_S)
        except grpc.RpcError:
            return False
        return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)


def _http(url: str) -> bool:
    try:
        return httpx.get(url, timeout=PROBE_S, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False
