"""API keys in Redis. A key itself is never stored: `tp:key:<SHA-256 of the key in hex>` says whose it is."""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass
from hashlib import sha256

from redis.asyncio import Redis
from redis.utils import str_if_bytes

from services.auth.state import UntrustedReplyError

DIGEST_BYTES = 32
_KEY_BYTES = 32
_SALT_BYTES = 16


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """Whose key it is and what it may do. priority: higher goes first."""

    key_id: str
    tenant: str
    tier: str
    priority: int
    cache_salt: str


def digest_of(key: str) -> bytes:
    """What a key is known by. Keys are 256 random bits, so a fast hash is enough."""
    return sha256(key.encode()).digest()


async def find_key(redis: Redis, digest: bytes) -> KeyRecord | None:
    """The key with this digest, or None. Raises UntrustedReplyError and redis-py's errors."""
    found = await redis.hgetall(_key_name(digest))
    fields = {str_if_bytes(name): str_if_bytes(value) for name, value in found.items()}
    if not fields:
        return None
    try:
        owner = bytes.fromhex(fields["digest"])
        record = KeyRecord(
            key_id=fields["key_id"],
            tenant=fields["tenant"],
            tier=fields["tier"],
            priority=int(fields["priority"]),
            cache_salt=fields["cache_salt"],
        )
    except (KeyError, ValueError) as error:
        raise UntrustedReplyError(f"a key's record can't be read: {error}") from None
    # The record names its owner, so that a reply meant for another lookup can never let somebody in.
    if not hmac.compare_digest(owner, digest):
        raise UntrustedReplyError("the record that came back is another key's")
    return record


async def create_key(redis: Redis, tenant: str, *, tier: str = "standard", priority: int = 0) -> str:
    """Makes a key of `tenant` (and the tenant, if it is new) and returns it: nobody can read it again.

    ValueError: a priority that is no int32.
    """
    if not -(2**31) <= priority < 2**31:
        raise ValueError(f"priority {priority} is out of range")
    key = f"tp-{secrets.token_urlsafe(_KEY_BYTES)}"
    digest = digest_of(key)
    await redis.hset(
        _key_name(digest),
        mapping={
            "digest": digest.hex(),
            "key_id": f"key_{secrets.token_hex(6)}",
            "tenant": tenant,
            "tier": tier,
            "priority": priority,
            "cache_salt": await _tenant_salt(redis, tenant),
        },
    )
    return key


async def _tenant_salt(redis: Redis, tenant: str) -> str:
    """The tenant's one salt: all its keys share cached pages, and no other tenant can guess their names."""
    name = f"tp:tenant:{tenant}"
    await redis.hsetnx(name, "cache_salt", secrets.token_hex(_SALT_BYTES))
    salt = await redis.hget(name, "cache_salt")
    if salt is None:
        raise UntrustedReplyError(f"tenant {tenant} has no cache salt, though one was just set")
    return str_if_bytes(salt)


def _key_name(digest: bytes) -> str:
    return f"tp:key:{digest.hex()}"
