"""Which worker holds which KV page, in bounded memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping


class PrefixIndex:
    """Block hashes (see kvcache.names.block_hash) with the set of workers that hold each, as bits of an int.

    One dict for all workers makes a lookup as dear for 100 workers as for one. At most `max_blocks` hashes:
    those neither stored nor matched for longest go first; losing one costs a worse choice, never a wrong answer.
    """

    def __init__(self, max_blocks: int) -> None:
        self._max_blocks = max_blocks
        self._holders: OrderedDict[int, int] = OrderedDict()
        self._blocks: dict[str, set[int]] = {}
        self._bits: dict[str, int] = {}
        self.evicted = 0

    def __len__(self) -> int:
        return len(self._holders)

    def sizes(self) -> Mapping[str, int]:
        """Blocks known of each worker."""
        return {worker_id: len(blocks) for worker_id, blocks in self._blocks.items()}

    def store(self, worker_id: str, hashes: Iterable[int]) -> None:
        bit = self._bit_of(worker_id)
        blocks = self._blocks[worker_id]
        for block in hashes:
            self._holders[block] = self._holders.get(block, 0) | bit
            self._holders.move_to_end(block)
            blocks.add(block)
        while len(self._holders) > self._max_blocks:
            self._evict_oldest()

    def remove(self, worker_id: str, hashes: Iterable[int]) -> None:
        blocks = self._blocks.get(worker_id)
        if not blocks:
            return
        bit = self._bits[worker_id]
        for block in hashes:
            if block in blocks:
                blocks.remove(block)
                self._clear_bit(block, bit)

    def drop(self, worker_id: str) -> None:
        """Forget everything about a worker: its view can't be trusted any more."""
        bit = self._bits.pop(worker_id, 0)
        for block in self._blocks.pop(worker_id, ()):
            self._clear_bit(block, bit)

    def match(self) -> PrefixMatch:
        """A new lookup, to be fed with a prompt's hashes in order."""
        return PrefixMatch(self._holders, dict(self._bits))

    def _bit_of(self, worker_id: str) -> int:
        bit = self._bits.get(worker_id)
        if bit is None:
            taken = 0
            for other in self._bits.values():
                taken |= other
            bit = self._bits[worker_id] = ~taken & (taken + 1)  # the lowest free bit
            self._blocks[worker_id] = set()
        return bit

    def _clear_bit(self, block: int, bit: int) -> None:
        left = self._holders[block] & ~bit
        if left:
            self._holders[block] = left
        else:
            del self._holders[block]

    def _evict_oldest(self) -> None:
        block, holders = self._holders.popitem(last=False)
        self.evicted += 1
        for worker_id, bit in self._bits.items():
            if holders & bit:
                self._blocks[worker_id].discard(block)


class PrefixMatch:
    """Finds for each worker how many of a prompt's first pages it holds without a hole."""

    def __init__(self, holders: OrderedDict[int, int], bits: Mapping[str, int]) -> None:
        self._holders = holders
        self._bits = bits
        self._alive = sum(bits.values())  # workers that hold every page so far
        self._pages = 0
        self._ended: list[tuple[int, int]] = []  # (workers whose prefix ended, pages they hold)

    def feed(self, hashes: Iterable[int]) -> bool:
        """Takes the next pages' hashes; False: no worker holds more, the rest need not be hashed."""
        for block in hashes:
            alive = self._alive & self._holders.get(block, 0)
            if alive != self._alive:
                self._ended.append((self._alive & ~alive, self._pages))
                self._alive = alive
            if not alive:
                return False
            self._holders.move_to_end(block)
            self._pages += 1
        return self._alive != 0

    def pages(self) -> dict[str, int]:
        """Worker id -> length of its longest known prefix, in pages; workers with none are absent."""
        found: dict[str, int] = {}
        for workers, pages in (*self._ended, (self._alive, self._pages)):
            if pages:
                found |= {worker_id: pages for worker_id, bit in self._bits.items() if workers & bit}
        return found
