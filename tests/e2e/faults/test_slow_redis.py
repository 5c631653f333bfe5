"""B087: with a slow Redis and clients that leave at random, nobody ever gets what is another's."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from uuid import uuid4

from services.auth.keys import create_key
from services.platform.redis import connect
from tests.e2e.api import Api, Mode, script
from tests.e2e.faults.at_rest import at_rest
from tests.e2e.faults.fleet import ALL, workers_are
from tests.e2e.ledger import settled_row
from tests.e2e.metrics import samples
from tests.latency_proxy import LatencyProxy, latency_proxy
from tests.stack import RunningStack

DELAY_S = 0.1
REQUESTS = 300
AT_A_TIME = 40
PROXIED = ("auth", "prefill-0", "decode-0", "decode-1")


@dataclass(frozen=True)
class Client:
    """What one client asks, and what alone can be its answer."""

    tenant: str
    key: str
    text: str

    @property
    def prompt(self) -> str:
        return f"{uuid4().hex} " * 3 + script(text=self.text)


async def test_b087_no_two_requests_are_mixed_up(api: Api) -> None:
    await workers_are(api, *ALL)
    stack = api.stack
    state = connect(stack.state_url)
    keys = {tenant: await create_key(state, tenant) for tenant in ("acme", "globex", "initech")}
    await state.aclose()
    async with (
        latency_proxy(stack.process("redis-state").ports["redis"], DELAY_S) as slow_state,
        latency_proxy(stack.process("redis-kv").ports["redis"], DELAY_S) as slow_kv,
    ):
        await asyncio.to_thread(stack.restart, *PROXIED, settings=through(slow_state, slow_kv))
        try:
            await workers_are(api, *ALL)
            await _crowd(api, keys)
            assert not mixed_up(stack)
        finally:
            await asyncio.to_thread(stack.restart, *PROXIED)


def mixed_up(stack: RunningStack) -> dict[str, float]:
    """Replies that belonged to another question. Auth and the page store look inside and turn them away, counted."""
    signs = ('kind="UntrustedReplyError"', *(f'result="{fault}"' for fault in ("missing", "mismatch", "corrupt")))
    return {
        f"{name} {sample}": value
        for name in PROXIED
        for sample, value in samples(stack.metrics_url(name)).items()
        if value and any(sign in sample for sign in signs)
    }


def through(state: LatencyProxy, kv: LatencyProxy) -> dict[str, str]:
    return {
        "TOKENPATH_AUTH_STATE_URL": state.redis_url,
        "TOKENPATH_PREFILL_KV_URL": kv.redis_url,
        "TOKENPATH_DECODE_KV_URL": kv.redis_url,
    }


async def _crowd(api: Api, keys: dict[str, str]) -> None:
    dice, gate = random.Random(87), asyncio.Semaphore(AT_A_TIME)

    async def visit(number: int) -> None:
        tenant = dice.choice(list(keys))
        words = [f"{tenant}{number}", *["yes"] * dice.randrange(1, 9)]
        client = Client(tenant, keys[tenant], " ".join(words))
        mode = Mode(dice.choice(["chat", "completions"]), dice.random() < 0.5)
        leaves_after = dice.uniform(0, 0.5) if number % 3 == 0 else None
        async with gate:
            try:
                async with asyncio.timeout(leaves_after):
                    await _served(api, client, mode)
            except TimeoutError:
                assert leaves_after is not None

    await asyncio.gather(*(visit(number) for number in range(REQUESTS)))
    await at_rest(api.stack, 10.0)


async def _served(api: Api, client: Client, mode: Mode) -> None:
    """Text, usage, tenant and bill are the client's own."""
    headers = {"authorization": f"Bearer {client.key}"}
    while (answer := await api.ask(mode, client.prompt, headers, max_tokens=60)).status == 503:
        pass  # on a busy machine a slow Redis may be too slow for auth, which says so
    assert answer.status == 200, answer.raw
    assert (answer.text, answer.finish_reason) == (client.text, "stop")
    usage = answer.usage
    assert usage is not None
    row = await settled_row(api.stack, answer.request_id)
    assert row["tenant"] == client.tenant
    for name in ("prompt_tokens", "completion_tokens"):
        assert int(row[name]) == usage[name]
