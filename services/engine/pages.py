"""A sequence's full pages: shared in the prefix cache, taken in from other workers, given away to them."""

from __future__ import annotations

from services.engine.block_pool import BlockPool
from services.engine.kv_changes import PageStored
from services.engine.runner import Runner
from services.engine.sequence import Sequence
from services.kvcache.names import PageName
from services.kvcache.page import Page


class Pages:
    """Owned by the compute thread."""

    def __init__(self, pool: BlockPool, runner: Runner) -> None:
        self._pool = pool
        self._runner = runner
        self._exports: list[tuple[str, Page]] = []

    def drain_exports(self) -> list[tuple[str, Page]]:
        """(sequence id, page) of each page read for another worker since the last call, in order."""
        exports, self._exports = self._exports, []
        return exports

    def take_in(self, sequence: Sequence) -> None:
        """Fill blocks with pages of the prompt that came from another worker, up to the first that is missing."""
        names = sequence.namer.names(sequence.prompt_ids, include_partial=True)
        for position in range(sequence.named, len(names)):
            page = sequence.request.pages.get(names[position])
            # At least one token must be left to run, to have something to sample from.
            if page is None or sequence.computed + page.tokens >= len(sequence.token_ids):
                break
            self._runner.write_block(sequence.block_ids[position], page.tokens, memoryview(page.payload))
            sequence.computed = position * sequence.block_size + page.tokens
        self.publish(sequence)

    def publish(self, sequence: Sequence) -> None:
        """Share the pages that have become full, and read those that another worker waits for."""
        full = sequence.computed // sequence.block_size
        if sequence.named < full:
            names = sequence.update_names()
            for position in range(sequence.named, full):
                self._name(sequence, position, names)
            sequence.named = full
        if sequence.request.on_page is not None and sequence.index == sequence.request.choices[0]:
            self._export(sequence)

    def _name(self, sequence: Sequence, position: int, names: list[PageName]) -> None:
        start = position * sequence.block_size
        page = PageStored(
            names[position],
            names[position - 1] if position else None,
            tuple(sequence.token_ids[start : start + sequence.block_size]),
            sequence.request.salt,
        )
        sequence.block_ids[position] = self._pool.name(sequence.block_ids[position], page)

    def _export(self, sequence: Sequence) -> None:
        """Read the prompt's computed pages that have not been given away yet, the partly filled last one included."""
        size, prompt = sequence.block_size, len(sequence.prompt_ids)
        while (start := sequence.exported * size) < prompt:
            tokens = min(size, prompt - start)
            if sequence.computed < start + tokens:
                return
            if tokens == size:
                name = sequence.names[sequence.exported]
            else:
                parent = sequence.names[sequence.exported - 1] if sequence.exported else None
                name = sequence.namer.next(parent, sequence.prompt_ids[start:])
            payload = self._runner.read_block(sequence.block_ids[sequence.exported], tokens)
            self._exports.append((sequence.sequence_id, Page(name, tokens, payload)))
            sequence.exported += 1
