"""No block is ever lost or owned twice, and no cached page is cut off from its prefix."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from services.engine.block_pool import BlockPool, NoFreeBlocks
from services.engine.kv_changes import CacheCleared, PageRemoved, PageStored
from services.kvcache.names import PageNamer

BLOCKS = 12
SIZE = 2


class Holder:
    """A sequence as the pool sees it: a prompt, its blocks, and how many of them are published."""

    def __init__(self, tokens: list[int], blocks: list[int], named: int) -> None:
        self.tokens = tokens
        self.blocks = blocks
        self.named = named


class PoolMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(BLOCKS)
        self.namer = PageNamer("fingerprint", "", SIZE)
        self.holders: list[Holder] = []
        self.parents: dict[bytes, bytes | None] = {}
        self.cached: set[bytes] = set()

    @rule(tokens=st.lists(st.integers(0, 1), min_size=SIZE, max_size=5 * SIZE))
    def admit(self, tokens: list[int]) -> None:
        names = self.namer.names(tokens)
        matched = self.pool.match(names)
        missing = -(-len(tokens) // SIZE) - len(matched)
        if missing > self.pool.available - self.pool.unheld(matched):
            return
        self.pool.hold(matched)
        self.holders.append(Holder(tokens, matched + self.pool.take(missing), len(matched)))

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def publish_next_page(self, data: st.DataObject) -> None:
        holder = data.draw(st.sampled_from(self.holders))
        names = self.namer.names(holder.tokens)
        place = holder.named
        if place >= len(names):
            return
        parent = names[place - 1] if place else None
        page = PageStored(names[place], parent, tuple(holder.tokens[place * SIZE : (place + 1) * SIZE]), "")
        holder.blocks[place] = self.pool.name(holder.blocks[place], page)
        holder.named += 1
        self.parents[names[place]] = parent

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        holder = self.holders.pop(data.draw(st.integers(0, len(self.holders) - 1)))
        self.pool.release(holder.blocks)

    @rule()
    def clear(self) -> None:
        assert self.pool.clear() == (not any(holder.blocks for holder in self.holders))

    @rule()
    def take_too_much(self) -> None:
        before = self.pool.usage
        with pytest.raises(NoFreeBlocks):
            self.pool.take(self.pool.available + 1)
        assert self.pool.usage == before

    @invariant()
    def blocks_are_conserved(self) -> None:
        usage = self.pool.usage
        assert usage.total == BLOCKS
        assert min(usage.used, usage.cached, usage.free) >= 0
        assert usage.used == len({block for holder in self.holders for block in holder.blocks})

    @invariant()
    def unpublished_blocks_have_one_owner(self) -> None:
        private = [block for holder in self.holders for block in holder.blocks[holder.named :]]
        shared = {block for holder in self.holders for block in holder.blocks[: holder.named]}
        assert len(private) == len(set(private))
        assert not shared & set(private)

    @invariant()
    def changes_tell_what_is_cached_and_parents_outlive_children(self) -> None:
        for change in self.pool.drain_changes():
            if isinstance(change, PageStored):
                assert change.name not in self.cached
                self.cached.add(change.name)
            elif isinstance(change, PageRemoved):
                self.cached.remove(change.name)
            else:
                assert isinstance(change, CacheCleared)
                self.cached.clear()
        for name in self.cached:
            parent = self.parents[name]
            assert parent is None or parent in self.cached


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_eviction_takes_the_least_recently_used_leaf_first() -> None:
    pool = BlockPool(3)
    namer = PageNamer("fingerprint", "", SIZE)
    names = namer.names([1, 1, 2, 2, 3, 3])
    blocks = pool.take(3)
    for place, name in enumerate(names):
        pool.name(blocks[place], PageStored(name, names[place - 1] if place else None, (0, 0), ""))
    pool.release(blocks)

    pool.take(1)

    assert pool.match(names) == blocks[:2]
