"""Gets a prompt's pages that another worker has computed; what can't be had in time is recomputed."""

from __future__ import annotations

import asyncio
from collections import Counter as TallyOf
from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter

from services.engine.runner import KvLayout
from services.kvcache.envelope import FaultReason, PageFault
from services.kvcache.names import PageName
from services.kvcache.page import Page
from services.kvcache.store import PageStore
from services.platform.stage import Stage

_RESULTS = {
    FaultReason.MISSING: "missing",
    FaultReason.SHORT: "corrupt",
    FaultReason.CORRUPT: "corrupt",
    FaultReason.MISMATCH: "mismatch",
    FaultReason.WRONG_TOKENS: "mismatch",
    FaultReason.UNAVAILABLE: "unavailable",
}


class PageFetcher:
    """Reads pages from the store and counts what became of each page that a hand-off named."""

    def __init__(self, store: PageStore | None, layout: KvLayout, wait_s: float, registry: CollectorRegistry) -> None:
        """`wait_s`: longest wait for the pages of one prompt."""
        self._store = store
        self._layout = layout
        self._wait_s = wait_s
        self._pages = Counter(
            "tokenpath_kv_pages",
            "Pages of handed-over prompts: hit (cached here), fetched, or why they must be recomputed",
            ["result"],
            registry=registry,
        )

    async def fetch(
        self, names: Sequence[PageName], prompt_tokens: int, cached: int, stage: Stage
    ) -> dict[PageName, Page]:
        """Good pages by name. `names` are the prompt's pages, of which the first `cached` are here already."""
        size = self._layout.block_size
        wanted = [(name, min(size, prompt_tokens - place * size)) for place, name in enumerate(names)][cached:]
        results = TallyOf({"hit": cached})
        pages = await self._read(wanted, results) if wanted else {}
        for result, count in results.items():
            if count:
                self._pages.labels(result).inc(count)
                stage.note(result, count)
        if len(pages) < len(wanted):
            stage.event("kv_missing", pages=len(wanted) - len(pages))
        stage.bytes = sum(len(page.payload) for page in pages.values())
        stage.tokens = sum(page.tokens for page in pages.values())
        return pages

    async def _read(self, wanted: Sequence[tuple[PageName, int]], results: TallyOf[str]) -> dict[PageName, Page]:
        if self._store is None:
            results["unavailable"] += len(wanted)
            return {}
        try:
            async with asyncio.timeout(self._wait_s):
                answers = await self._store.get(wanted)
        except TimeoutError:
            results["late"] += len(wanted)
            return {}
        pages: dict[PageName, Page] = {}
        for answer in answers:
            if isinstance(answer, PageFault):
                results[_RESULTS[answer.reason]] += 1
            elif len(answer.payload) != self._layout.payload_bytes(answer.tokens):
                results["mismatch"] += 1
            else:
                results["fetched"] += 1
                pages[answer.name] = answer
        return pages
