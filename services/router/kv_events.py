"""Turns one worker's stream of KV events into its part of the index, or says that the stream can't be trusted."""

from __future__ import annotations

from smg_grpc_proto.generated import common_pb2

from services.platform.fleet import StreamUnusable
from services.router.prefix_index import PrefixIndex


class KvEventReader:
    """Applies the batches of one subscription, in order.

    The first message is the first chunk of a snapshot (engines with a complete history may begin with their
    first live batch instead); after that numbers grow by one. Anything else is a gap: StreamUnusable, and only a
    new subscription, with its new snapshot, helps.
    """

    def __init__(self, index: PrefixIndex, worker_id: str) -> None:
        self._index = index
        self._worker_id = worker_id
        self._last: int | None = None

    def apply(self, batch: common_pb2.KvEventBatch) -> None:
        """StreamUnusable: a batch is missing."""
        if batch.load.load_only:
            return  # repeats the last number and carries no events
        starts_over = batch.HasField("snapshot") and batch.snapshot.index == 0
        if starts_over or self._last is None:
            self._index.drop(self._worker_id)
        elif batch.sequence_number != self._last + 1:
            raise StreamUnusable("gap")
        self._last = batch.sequence_number
        for event in batch.events:
            kind = event.WhichOneof("data")
            if kind == "stored":
                self._index.store(self._worker_id, (block.block_hash for block in event.stored.blocks))
            elif kind == "removed":
                self._index.remove(self._worker_id, event.removed.block_hashes)
            elif kind == "cleared":
                self._index.drop(self._worker_id)
