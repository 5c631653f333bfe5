"""How much of a prompt each worker holds, without holding up other requests."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Iterable, Sequence

from services.kvcache.names import PageName, PageNamer, block_hash
from services.platform.fleet import WorkerRecord
from services.router.prefix_index import PrefixIndex

_SLICE_BLOCKS = 512  # hashed in one go: about half a millisecond


async def cached_tokens(
    index: PrefixIndex, token_ids: Sequence[int], salt: str, workers: Iterable[WorkerRecord], max_blocks: int
) -> dict[str, int]:
    """Worker id -> prompt tokens it is believed to hold; workers with none are absent.

    Only full pages count, only the first `max_blocks` of them, and hashing ends where no worker holds more.
    The event loop gets its turn after each slice: a thread would not help, for hashing small
    pages keeps the interpreter lock.
    """
    found: dict[str, int] = {}
    # Workers of different models or layouts name the same prompt's pages differently.
    kinds = {(worker.fingerprint, worker.block_size) for worker in workers if worker.block_size > 0}
    for fingerprint, block_size in sorted(kinds):
        pages = await _match(index, token_ids, PageNamer(fingerprint, salt, block_size), max_blocks)
        found |= {worker_id: held * block_size for worker_id, held in pages.items()}
    return found


async def _match(index: PrefixIndex, token_ids: Sequence[int], namer: PageNamer, max_blocks: int) -> dict[str, int]:
    blocks = min(len(token_ids) // namer.block_size, max_blocks)
    match = index.match()
    names: list[PageName] = []
    tokens = array("I")
    for start in range(0, blocks, _SLICE_BLOCKS):
        if start:
            await asyncio.sleep(0)
        end = min(start + _SLICE_BLOCKS, blocks)
        tokens.extend(token_ids[start * namer.block_size : end * namer.block_size])
        namer.extend(names, tokens)
        if not match.feed(block_hash(name) for name in names[start:end]):
            break
    return match.pages()
