"""The ledger: one row a request in the stream `tp:ledger`, whoever settles it and however often."""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields

from redis.asyncio import Redis

from services.auth.state import UntrustedReplyError

LEDGER_KEY = "tp:ledger"
# A repeated settle must find its first row. Repeats come from retries within minutes, or from a gateway
# that kept what it could not settle during an outage: a week outlasts both. For ever would cost a key a
# request.
SETTLED_TTL_S = 7 * 24 * 3600

# Redis runs a script as one step and logs its writes as one transaction, so neither a crash nor a
# second caller can come between the row and the note that it exists.
# KEYS: settled note, ledger. ARGV: TTL in seconds, then the row as name, value, name, value...
_SETTLE = """
local first = redis.call('HMGET', KEYS[1], 'row_id', 'request_id', 'cost_nano_usd', 'price_version')
if first[1] then
  return {first[1], first[2], first[3], first[4], 1}
end
local row = {}
for i = 2, #ARGV, 2 do row[ARGV[i]] = ARGV[i + 1] end
local id = redis.call('XADD', KEYS[2], '*', unpack(ARGV, 2))
redis.call('HSET', KEYS[1], 'row_id', id, 'request_id', row.request_id,
           'cost_nano_usd', row.cost_nano_usd, 'price_version', row.price_version)
redis.call('EXPIRE', KEYS[1], ARGV[1])
return {id, row.request_id, row.cost_nano_usd, row.price_version, 0}
"""


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """One request's account. cached_tokens are part of prompt_tokens; times in ms since 1970 UTC."""

    request_id: str
    key_id: str
    tenant: str
    model: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    outcome: str
    attempts: int
    cost_nano_usd: int
    price_version: str
    started_unix_ms: int
    settled_unix_ms: int


@dataclass(frozen=True, slots=True)
class LedgerReceipt:
    """The request's row. duplicate: it had been written before, and cost and version are that row's."""

    row_id: str
    cost_nano_usd: int
    price_version: str
    duplicate: bool


class Ledger:
    """Settles requests exactly once."""

    def __init__(self, redis: Redis) -> None:
        self._settle = redis.register_script(_SETTLE)

    async def settle(self, row: LedgerRow) -> LedgerReceipt:
        """Writes the row unless its request has one. Safe to repeat after any failure.

        Raises UntrustedReplyError and redis-py's errors.
        """
        pairs = [part for name, value in zip(_FIELDS, astuple(row), strict=True) for part in (name, value)]
        answer = await self._settle(keys=[f"tp:settled:{row.request_id}", LEDGER_KEY], args=[SETTLED_TTL_S, *pairs])
        row_id, request_id, cost, version, duplicate = answer
        if request_id.decode() != row.request_id:
            raise UntrustedReplyError("the ledger answered about another request")
        return LedgerReceipt(row_id.decode(), int(cost), version.decode(), bool(duplicate))


_FIELDS = tuple(field.name for field in fields(LedgerRow))
