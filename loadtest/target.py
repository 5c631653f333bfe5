"""Which gateway to load: the one named by the environment, else the local stack of this folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

STACK_FILE = Path(".tokenpath") / "stack.json"


@dataclass(frozen=True)
class Target:
    url: str  # http://host:port
    api_key: str


class NoTarget(Exception):
    """There is nothing to load; the message says what to do."""


def find_target(environment: Mapping[str, str], folder: Path) -> Target:
    """TOKENPATH_URL and TOKENPATH_API_KEY win over the running local stack. Raises NoTarget."""
    url = environment.get("TOKENPATH_URL", "")
    if url:
        return Target(url.rstrip("/"), environment.get("TOKENPATH_API_KEY", ""))
    try:
        stack = json.loads((folder / STACK_FILE).read_text())
        target = Target(stack["urls"]["gateway"].rstrip("/"), stack["api_key"])
        ready = stack["ready"]
    except FileNotFoundError:
        raise NoTarget("no stack runs in this folder: `make up` first, or set TOKENPATH_URL") from None
    except (ValueError, KeyError, TypeError) as error:
        raise NoTarget(f"{STACK_FILE} is not readable ({error}): `make down`, then `make up`") from None
    if not ready:
        raise NoTarget("the stack of this folder is only half started: `make down`, then `make up`")
    return target
