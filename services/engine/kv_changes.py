"""What can happen to a page in a worker's prefix cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from services.kvcache.names import PageName


@dataclass(frozen=True, slots=True)
class PageStored:
    """A full page can be shared from now on."""

    name: PageName
    parent: PageName | None
    """None: the first page of a prompt."""
    token_ids: tuple[int, ...]
    salt: str


@dataclass(frozen=True, slots=True)
class PageRemoved:
    name: PageName


@dataclass(frozen=True, slots=True)
class CacheCleared:
    """Nothing is cached any more."""


KvChange: TypeAlias = PageStored | PageRemoved | CacheCleared
