"""What a place for pages outside the workers can do, whatever it is made of."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from services.kvcache.envelope import PageFault
from services.kvcache.names import PageName
from services.kvcache.page import Page


class StoreUnavailable(Exception):
    """The store did not take the pages; whoever needs them recomputes them.

    reason (also a metric's label): busy, timeout, refused or connection.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class PutResult:
    """What a put did. pages: now in the store; written: those of them that were not there before;
    bytes: sent for them.
    """

    pages: int
    written: int
    bytes: int
    duration_ns: int


class PageStore(Protocol):
    """Content-addressed: two writers of one name write the same bytes, so writes need no order."""

    async def put(self, pages: Sequence[Page], *, ttl_s: float) -> PutResult:
        """Stores pages for at least ttl_s seconds. Raises StoreUnavailable; some pages may be stored then."""
        ...

    async def get(self, wanted: Sequence[tuple[PageName, int]]) -> list[Page | PageFault]:
        """For each (name, filled tokens), in order, the verified page or why there is none. Never raises
        StoreUnavailable: what could not be read is a fault too.
        """
        ...

    async def close(self) -> None:
        """Ends all connections. The store can't be used afterwards."""
        ...
