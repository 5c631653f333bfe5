"""Identifiers that we make ourselves: callers' ids are only ever echoed."""

from __future__ import annotations

import secrets
import time

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford base 32: no i, l, o, u


def _base32(value: int, length: int) -> str:
    return "".join(_ALPHABET[(value >> (5 * place)) & 31] for place in reversed(range(length)))


def _sortable_id() -> str:
    """26 characters: 48 bits of milliseconds, 80 bits of randomness (the ULID layout)."""
    return _base32(time.time_ns() // 1_000_000, 10) + _base32(secrets.randbits(80), 16)


def new_request_id() -> str:
    """Name one accepted request. Sorts by time."""
    return f"req_{_sortable_id()}"


def new_generation() -> str:
    """Name one life of a worker process: a restart is a new generation."""
    return _sortable_id()
