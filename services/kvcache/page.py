"""A KV page outside an engine."""

from dataclasses import dataclass

from services.kvcache.names import PageName


@dataclass(frozen=True, slots=True)
class Page:
    """One page's bytes. tokens: how many of its slots are filled, 1 to block_size.

    payload: in the engine's layout, opaque here. A view must be of plain bytes (format B, contiguous)
    whose memory is not written to again: a cancelled put may still be sending it.
    """

    name: PageName
    tokens: int
    payload: bytes | memoryview
