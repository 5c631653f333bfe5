"""Feeds for watchers who are slow, late, or back after a break."""

from __future__ import annotations

from services.engine.kv_changes import CacheCleared, PageRemoved, PageStored
from services.engine.kv_events import KvBatch, KvEventLog
from services.engine.outcome import Load, Step
from services.engine.steps import MAX_BEHIND, StepFeed, StepRecord
from services.kvcache.names import PageName, PageNamer

NAMES = PageNamer("fingerprint", "", 1).names(list(range(40)))


def stored(place: int) -> PageStored:
    return PageStored(NAMES[place], NAMES[place - 1] if place else None, (place,), "")


def replay(batches: list[KvBatch], pages: set[PageName]) -> set[PageName]:
    for change in (change for batch in batches for change in batch.changes):
        if isinstance(change, PageStored):
            pages.add(change.name)
        elif isinstance(change, PageRemoved):
            pages.remove(change.name)
        else:
            pages.clear()
    return pages


async def test_a_slow_subscriber_gets_a_snapshot_instead_of_holding_up_the_engine() -> None:
    log = KvEventLog(max_behind=4)
    with log.subscribe() as slow, log.subscribe() as quick:
        seen: set[PageName] = set()
        for place in range(20):
            log.publish([stored(place)], Load())
            replay(await quick.next(), seen)
        assert len(seen) == 20
        [snapshot] = await slow.next()
        assert snapshot.snapshot
        assert snapshot.sequence == 21
        assert replay([snapshot], {PageName(b"what it held before")}) == seen

        log.publish([PageRemoved(NAMES[19])], Load())
        [following] = await slow.next()
        assert (following.sequence, following.snapshot) == (22, False)


async def test_who_comes_back_gets_what_was_missed_or_a_snapshot() -> None:
    log = KvEventLog(history=4)
    for place in range(10):
        log.publish([stored(place)], Load())
    cases = {9: [9, 10, 11], 12: [], 8: [8, 9, 10, 11]}
    for start, numbers in cases.items():
        with log.subscribe(start) as subscription:
            first = [batch for batch in await subscription.next() if not batch.load_only]
            assert [batch.sequence for batch in first] == numbers
            assert not any(batch.snapshot for batch in first)
    for start in (3, 99, 0):  # forgotten, of another life, new
        with log.subscribe(start) as subscription:
            [batch] = await subscription.next()
            assert (batch.sequence, batch.snapshot) == (11, True)


async def test_a_new_life_begins_with_one_and_a_clear() -> None:
    with KvEventLog().subscribe() as subscription:
        [batch] = await subscription.next()
        assert (batch.sequence, batch.changes) == (1, (CacheCleared(),))


async def test_parents_come_first_in_a_snapshot_after_evictions() -> None:
    log = KvEventLog()
    log.publish([stored(place) for place in range(4)], Load())
    log.publish([PageRemoved(NAMES[3]), PageRemoved(NAMES[2])], Load())
    log.publish([stored(2)], Load())
    with log.subscribe() as subscription:
        [batch] = await subscription.next()
    pages = [change for change in batch.changes if isinstance(change, PageStored)]
    known: set[PageName] = set()
    for page in pages:
        assert page.parent is None or page.parent in known
        known.add(page.name)
    assert len(known) == 3
    assert log.leading(NAMES) == 3


async def test_a_slow_watcher_of_steps_loses_the_oldest_and_can_tell() -> None:
    feed = StepFeed()
    with feed.watch() as watcher:
        for number in range(1, MAX_BEHIND + 11):
            feed.publish(StepRecord(Step(number, 1, 0, 1), Load()))
        records = await watcher.next()
    assert [record.step and record.step.number for record in records] == list(range(11, MAX_BEHIND + 11))
