import pytest
from smg_grpc_proto.generated.common_pb2 import (
    EngineLoad,
    KvBlock,
    KvBlocksRemoved,
    KvBlocksStored,
    KvCacheCleared,
    KvCacheEvent,
    KvEventBatch,
    KvSnapshotChunk,
)

from services.platform.fleet import StreamUnusable
from services.router.kv_events import KvEventReader
from services.router.prefix_index import PrefixIndex

CLEARED = KvCacheEvent(cleared=KvCacheCleared())


def stored(*hashes: int) -> KvCacheEvent:
    return KvCacheEvent(stored=KvBlocksStored(blocks=[KvBlock(block_hash=block, block_size=16) for block in hashes]))


def removed(*hashes: int) -> KvCacheEvent:
    return KvCacheEvent(removed=KvBlocksRemoved(block_hashes=hashes))


def batch(number: int, *events: KvCacheEvent, chunk: tuple[int, int] | None = None) -> KvEventBatch:
    snapshot = KvSnapshotChunk(index=chunk[0], count=chunk[1]) if chunk else None
    return KvEventBatch(sequence_number=number, events=events, snapshot=snapshot)


def known(index: PrefixIndex, *prompt: int) -> int:
    match = index.match()
    match.feed(prompt)
    return match.pages().get("w", 0)


def reader() -> tuple[KvEventReader, PrefixIndex]:
    index = PrefixIndex(1000)
    return KvEventReader(index, "w"), index


def test_a_snapshot_in_chunks_and_the_events_after_it() -> None:
    events, index = reader()
    events.apply(batch(8, CLEARED, stored(1, 2), chunk=(0, 2)))
    events.apply(batch(9, stored(3), chunk=(1, 2)))
    assert known(index, 1, 2, 3, 4) == 3
    events.apply(batch(10, stored(4), removed(2)))
    assert known(index, 1, 2, 3, 4) == 1
    assert known(index, 3, 4) == 2


def test_what_was_known_before_the_snapshot_is_forgotten() -> None:
    events, index = reader()
    index.store("w", [7])
    events.apply(batch(1, CLEARED, stored(1), chunk=(0, 1)))
    assert known(index, 7) == 0
    assert known(index, 1) == 1


def test_an_engine_without_snapshots_may_begin_with_its_first_batch() -> None:
    events, index = reader()
    events.apply(batch(1, stored(1)))
    events.apply(batch(2, stored(2)))
    assert known(index, 1, 2) == 2


@pytest.mark.parametrize("number", [7, 9, 100, 0])
def test_a_number_that_is_not_the_next_one_is_a_gap(number: int) -> None:
    events, _ = reader()
    events.apply(batch(7, CLEARED, chunk=(0, 1)))
    with pytest.raises(StreamUnusable, match="gap"):
        events.apply(batch(number, stored(1)))


def test_a_cleared_cache_is_empty_and_the_numbers_go_on() -> None:
    events, index = reader()
    events.apply(batch(1, CLEARED, stored(1), chunk=(0, 1)))
    events.apply(batch(2, CLEARED))
    assert known(index, 1) == 0
    events.apply(batch(3, stored(5)))
    assert known(index, 5) == 1


def test_heartbeats_that_repeat_the_last_number_are_no_gap() -> None:
    events, index = reader()
    events.apply(KvEventBatch(sequence_number=0, load=EngineLoad(load_only=True)))
    events.apply(batch(4, CLEARED, stored(1), chunk=(0, 1)))
    events.apply(KvEventBatch(sequence_number=4, load=EngineLoad(load_only=True)))
    events.apply(batch(5, stored(2)))
    assert known(index, 1, 2) == 2
