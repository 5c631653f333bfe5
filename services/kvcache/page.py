"""A KV page outside an engine."""

from dataclasses import dataclass

from services.kvcache.names import PageName


@dataclass(frozen=True, slots=True)
class Page:
    """One page's bytes. tokens: how many of its slots are filled, 1 to block_size.

    payload: the engine's layout, opaque here; whoever holds the page must not write to it.
    """

    name: PageName
    tokens: int
    payload: bytes | memoryview
