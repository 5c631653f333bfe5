"""`python -m services.auth.provision --state-url URL --tenant NAME` prints a new API key of the tenant."""

from __future__ import annotations

import argparse
import asyncio
import sys

from redis.exceptions import RedisError

from services.auth.keys import create_key
from services.platform.redis import connect


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m services.auth.provision", description="Makes an API key.")
    parser.add_argument("--state-url", required=True, help="the state Redis, e.g. redis://127.0.0.1:6379/0")
    parser.add_argument("--tenant", required=True)
    parser.add_argument("--tier", default="standard")
    parser.add_argument("--priority", type=int, default=0, help="higher goes first")
    options = parser.parse_args()
    try:
        print(asyncio.run(_provision(options.state_url, options.tenant, options.tier, options.priority)))
    except (RedisError, OSError, ValueError) as error:
        sys.exit(f"no key made: {error}; is the state Redis up, and is --state-url right?")


async def _provision(state_url: str, tenant: str, tier: str, priority: int) -> str:
    redis = connect(state_url)
    try:
        return await create_key(redis, tenant, tier=tier, priority=priority)
    finally:
        await redis.aclose()


if __name__ == "__main__":
    main()
