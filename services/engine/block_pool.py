"""Who owns which KV block: reference counts, the free list and the prefix cache."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from services.engine.kv_changes import CacheCleared, KvChange, PageRemoved, PageStored
from services.kvcache.names import PageName


class NoFreeBlocks(Exception):
    """Every block is in use by a live sequence."""


@dataclass(frozen=True, slots=True)
class PoolUsage:
    """Blocks by state; the three always add up to `total`."""

    used: int
    """Held by live sequences."""
    cached: int
    """Held by nobody, still named: a prefix hit may revive them, an allocation may evict them."""
    free: int

    @property
    def total(self) -> int:
        return self.used + self.cached + self.free


class BlockPool:
    """A fixed number of blocks. Owned by the compute thread.

    A sequence holds a page only together with all pages before it, and lets go of its last page first. Unheld pages
    are therefore in least-recently-used order with children before their parents, so that eviction from the front
    takes leaves first and never cuts a cached page off from its prefix.
    """

    def __init__(self, blocks: int) -> None:
        self.total = blocks
        self._holders = [0] * blocks
        self._names: list[PageName | None] = [None] * blocks
        self._block_of: dict[PageName, int] = {}
        self._free = list(range(blocks - 1, -1, -1))
        self._evictable: OrderedDict[int, None] = OrderedDict()
        self._changes: list[KvChange] = []

    @property
    def available(self) -> int:
        """Blocks that `take` can give."""
        return len(self._free) + len(self._evictable)

    @property
    def usage(self) -> PoolUsage:
        return PoolUsage(used=self.total - self.available, cached=len(self._evictable), free=len(self._free))

    def match(self, names: Sequence[PageName]) -> list[int]:
        """Blocks of the leading pages that are here. Holds nothing: call `hold` before the next `take`."""
        blocks: list[int] = []
        for name in names:
            block = self._block_of.get(name)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def unheld(self, blocks: Sequence[int]) -> int:
        """How many of `blocks` are cached only, so that holding them makes `available` smaller."""
        return sum(1 for block in blocks if self._holders[block] == 0)

    def hold(self, blocks: Sequence[int]) -> None:
        """Share named blocks with one more sequence."""
        for block in blocks:
            if self._holders[block] == 0:
                del self._evictable[block]
            self._holders[block] += 1

    def take(self, count: int) -> list[int]:
        """`count` blocks for one holder, evicting cached pages when none is free. Raises NoFreeBlocks, taking none."""
        if count > self.available:
            raise NoFreeBlocks(f"{count} KV blocks needed, {self.available} of {self.total} available")
        taken: list[int] = []
        for _ in range(count):
            block = self._free.pop() if self._free else self._evict()
            self._holders[block] = 1
            taken.append(block)
        return taken

    def name(self, block: int, page: PageStored) -> int:
        """Publish a full, computed block for others to share; returns the block that the holder has from now on.

        When the same page is here already (two sequences computed one prefix side by side), the holder gets that
        block and its own becomes free, so a page has one block and its children's prefix is always held.
        """
        known = self._block_of.get(page.name)
        if known is None:
            self._block_of[page.name] = block
            self._names[block] = page.name
            self._changes.append(page)
            return block
        if known != block:
            self.hold([known])
            self.release([block])
        return known

    def release(self, blocks: Sequence[int]) -> None:
        """Let go of a sequence's blocks, given in the order of its tokens."""
        for block in reversed(blocks):
            self._holders[block] -= 1
            if self._holders[block] > 0:
                continue
            if self._names[block] is None:
                self._free.append(block)
            else:
                self._evictable[block] = None

    def clear(self) -> bool:
        """Forget every cached page; refused (False) while a sequence holds blocks."""
        if self.available < self.total:
            return False
        self._block_of.clear()
        self._names = [None] * self.total
        self._free.extend(self._evictable)
        self._evictable.clear()
        self._changes.append(CacheCleared())
        return True

    def drain_changes(self) -> list[KvChange]:
        """What changed in the prefix cache since the last call, in order."""
        changes, self._changes = self._changes, []
        return changes

    def _evict(self) -> int:
        block, _ = self._evictable.popitem(last=False)
        name = self._names[block]
        assert name is not None, "only named blocks are evictable"
        del self._block_of[name]
        self._names[block] = None
        self._changes.append(PageRemoved(name))
        return block
