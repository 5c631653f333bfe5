"""What surrounds a page's payload in a store, so that a reader can tell a right page from a wrong one.

80 bytes, little-endian: magic, version, filled tokens, payload length, fingerprint digest, page name,
12 zero bytes, digest of all that and the payload. The payload starts at a multiple of 16.
"""

from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b
from struct import Struct

from services.kvcache.names import PageName
from services.kvcache.page import Page

_MAGIC = b"TPKV"
_VERSION = 1
_FIELDS = Struct("<4sIIQ16s16s12x")
_DIGEST_BYTES = 16
HEADER_BYTES = _FIELDS.size + _DIGEST_BYTES


class FaultReason(Enum):
    """Why a page can't be used. The value is its name in metrics."""

    MISSING = "missing"  # not there: never written, expired or evicted
    SHORT = "short"  # cut off, or longer than it says
    MISMATCH = "mismatch"  # another page's bytes, or another model, layout or envelope version
    CORRUPT = "corrupt"  # bits differ from what was written
    WRONG_TOKENS = "wrong_tokens"  # holds another number of tokens than the reader needs
    UNAVAILABLE = "unavailable"  # the store did not answer


@dataclass(frozen=True, slots=True)
class PageFault:
    """A page that must be recomputed."""

    name: PageName
    reason: FaultReason


class Envelope:
    """Seals and opens pages of one fingerprint."""

    def __init__(self, fingerprint: str) -> None:
        self._fingerprint = blake2b(fingerprint.encode(), digest_size=16).digest()

    def header(self, page: Page) -> bytes:
        """The HEADER_BYTES bytes that go before page.payload."""
        fields = _FIELDS.pack(_MAGIC, _VERSION, page.tokens, len(page.payload), self._fingerprint, page.name)
        return fields + _digest(fields, page.payload)

    def open(self, name: PageName, tokens: int, value: bytes | None) -> Page | PageFault:
        """The page in `value` (header and payload; None: nothing there) if it is page `name` with `tokens` tokens.

        The payload is a view of `value`, not a copy.
        """
        if value is None:
            return PageFault(name, FaultReason.MISSING)
        if len(value) < HEADER_BYTES:
            return PageFault(name, FaultReason.SHORT)
        magic, version, found_tokens, length, fingerprint, found_name = _FIELDS.unpack_from(value)
        if (magic, version, fingerprint, found_name) != (_MAGIC, _VERSION, self._fingerprint, name):
            return PageFault(name, FaultReason.MISMATCH)
        view = memoryview(value)
        payload = view[HEADER_BYTES:]
        if len(payload) != length:
            return PageFault(name, FaultReason.SHORT)
        if _digest(view[: _FIELDS.size], payload) != view[_FIELDS.size : HEADER_BYTES]:
            return PageFault(name, FaultReason.CORRUPT)
        if found_tokens != tokens:
            return PageFault(name, FaultReason.WRONG_TOKENS)
        return Page(name, tokens, payload)


def _digest(fields: bytes | memoryview, payload: bytes | memoryview) -> bytes:
    digest = blake2b(fields, digest_size=_DIGEST_BYTES)
    digest.update(payload)  # lets other threads run: hashlib drops the GIL for long inputs
    return digest.digest()
