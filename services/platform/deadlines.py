"""Remaining time, passed on from hop to hop. "No deadline" stays none; it never becomes an instant one."""

from __future__ import annotations

from typing import Any

import grpc

_NO_DEADLINE_S = 10 * 365 * 24 * 3600.0  # grpc reports "none" as a time in the far future


def remaining_s(context: grpc.aio.ServicerContext[Any, Any]) -> float | None:
    """Seconds until the incoming call's deadline (>= 0), or None when the caller set none."""
    left = context.time_remaining()
    if left is None or left > _NO_DEADLINE_S:
        return None
    return max(0.0, left)


def within(remaining: float | None, cap_s: float) -> float:
    """The deadline for a call that must never take longer than `cap_s` seconds."""
    return cap_s if remaining is None else min(remaining, cap_s)
