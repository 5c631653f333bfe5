"""Names of KV pages: chained content addresses, the same in the router and in every worker.

A page's name is blake2b-128 of its parent's name and its own token ids; the first page's parent is
a root made of fingerprint, tenant salt and block size. Equal names therefore mean equal KV bytes:
same model, weights, dtype and layout (fingerprint), same tenant (salt), same tokens before and in it.
"""

import sys
from array import array
from collections.abc import Iterable, MutableSequence, Sequence
from hashlib import blake2b
from typing import NewType

PageName = NewType("PageName", bytes)
"""16 bytes."""

NAME_BYTES = 16
_TOKEN_BYTES = 4
_DOMAIN = b"tokenpath-page-1"


class PageNamer:
    """Names the pages of token sequences that share one fingerprint and one salt. Immutable."""

    def __init__(self, fingerprint: str, salt: str, block_size: int) -> None:
        """block_size: tokens a page, at least 1."""
        if block_size < 1:
            raise ValueError(f"block_size must be at least 1, got {block_size}")
        self.block_size = block_size
        self.root = _root(fingerprint, salt, block_size)

    def names(self, token_ids: Sequence[int], *, include_partial: bool = False) -> list[PageName]:
        """The names of the full pages of token_ids in order; with include_partial, also of the last page if it
        holds fewer than block_size tokens. OverflowError: a token id outside 0 .. 2**32 - 1.
        """
        names: list[PageName] = []
        self.extend(names, token_ids)
        tail = token_ids[len(names) * self.block_size :]
        if include_partial and len(tail) > 0:
            names.append(self.next(names[-1] if names else None, tail))
        return names

    def extend(self, names: MutableSequence[PageName], token_ids: Sequence[int]) -> None:
        """Appends the names of the full pages that `names` does not cover yet.

        `names` holds the names of the first len(names) full pages of token_ids, so a growing
        sequence pays only for what is new.
        """
        span = self.block_size * _TOKEN_BYTES
        known = len(names)
        missing = len(token_ids) // self.block_size - known
        if missing <= 0:
            return
        packed = _pack(token_ids[known * self.block_size : (known + missing) * self.block_size])
        name: bytes = names[-1] if known else self.root
        for start in range(0, missing * span, span):
            name = blake2b(name + packed[start : start + span], digest_size=NAME_BYTES).digest()
            names.append(PageName(name))

    def next(self, parent: PageName | None, token_ids: Sequence[int]) -> PageName:
        """The name of the page of 1 to block_size tokens that follows `parent` (None: the first page).

        A partly filled page differs from a full one by the length of what is hashed.
        """
        if not 1 <= len(token_ids) <= self.block_size:
            raise ValueError(f"a page holds 1 to {self.block_size} tokens, got {len(token_ids)}")
        packed = _pack(token_ids)
        return PageName(blake2b((parent or self.root) + packed, digest_size=NAME_BYTES).digest())


def block_hash(name: PageName) -> int:
    """The name's first 8 bytes as a signed big-endian int64: how KV events call a page."""
    return int.from_bytes(name[:8], "big", signed=True)


def _pack(token_ids: Iterable[int]) -> bytes:
    """Token ids as little-endian uint32."""
    packed = array("I", token_ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def _root(fingerprint: str, salt: str, block_size: int) -> bytes:
    digest = blake2b(digest_size=NAME_BYTES)
    # Each part goes in with its length, so that ("ab", "c") and ("a", "bc") differ.
    for part in (_DOMAIN, fingerprint.encode(), salt.encode(), block_size.to_bytes(4, "little")):
        digest.update(len(part).to_bytes(4, "little") + part)
    return digest.digest()
