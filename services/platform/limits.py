"""Sizes and intervals that both sides of every channel agree on."""

from __future__ import annotations

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""Largest gRPC message, sent or received. The gateway refuses bodies far below it (413), so no hop can meet
a message that the previous hop was allowed to send."""

KEEPALIVE_TIME_MS = 30_000
"""A client pings after this long without data, so that a silent 10-minute call keeps its connection."""

KEEPALIVE_TIMEOUT_MS = 10_000
"""A peer that does not answer a ping for this long is gone."""

MIN_PING_INTERVAL_MS = 5_000
"""Servers accept pings this often. Below KEEPALIVE_TIME_MS on purpose: gRPC's default (5 minutes) would answer
our own keepalive with GOAWAY too_many_pings and kill every call of the channel."""

ChannelOption = tuple[str, int]


def message_size_options(max_bytes: int = MAX_MESSAGE_BYTES) -> list[ChannelOption]:
    """Channel and server options for the largest message, in bytes."""
    return [("grpc.max_send_message_length", max_bytes), ("grpc.max_receive_message_length", max_bytes)]


def client_options(keepalive_ms: int = KEEPALIVE_TIME_MS) -> list[ChannelOption]:
    """Options of every channel."""
    return [
        *message_size_options(),
        ("grpc.keepalive_time_ms", keepalive_ms),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 0),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 2_000),
        ("grpc.enable_retries", 0),  # retries are the gateway's alone, so that they can't multiply
    ]


def server_options(min_ping_interval_ms: int = MIN_PING_INTERVAL_MS) -> list[ChannelOption]:
    """Options of every server."""
    return [
        *message_size_options(),
        ("grpc.http2.min_ping_interval_without_data_ms", min_ping_interval_ms),
        ("grpc.http2.max_ping_strikes", 2),
        ("grpc.keepalive_time_ms", KEEPALIVE_TIME_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.so_reuseport", 0),  # a second server on the same port is an error, not a lottery
    ]
