"""Waiting for a condition instead of sleeping."""

import asyncio
import time
from collections.abc import Callable


async def eventually(holds: Callable[[], object], what: str, limit_s: float = 10.0) -> None:
    """Returns as soon as `holds()` is true; AssertionError that says `what` after `limit_s`."""
    give_up = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < give_up, f"not within {limit_s} s: {what}"
        await asyncio.sleep(0.005)
