"""A reader never takes a wrong page for a right one."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.kvcache.envelope import HEADER_BYTES, Envelope, FaultReason, PageFault
from services.kvcache.names import PageName
from services.kvcache.page import Page

NAME = PageName(bytes(range(16)))
ENVELOPE = Envelope("model-a")
PAGE = Page(NAME, 16, os.urandom(1000))


def sealed(page: Page = PAGE, envelope: Envelope = ENVELOPE) -> bytes:
    return envelope.header(page) + bytes(page.payload)


def reason(value: bytes | None, name: PageName = NAME, tokens: int = 16) -> FaultReason | None:
    opened = ENVELOPE.open(name, tokens, value)
    assert opened.name == name
    return opened.reason if isinstance(opened, PageFault) else None


def test_what_was_sealed_opens() -> None:
    opened = ENVELOPE.open(NAME, 16, sealed())
    assert isinstance(opened, Page)
    assert bytes(opened.payload) == PAGE.payload
    assert (HEADER_BYTES % 16, opened.tokens) == (0, 16)


def test_a_view_is_sealed_like_its_bytes() -> None:
    assert ENVELOPE.header(Page(NAME, 16, memoryview(bytes(PAGE.payload)))) == ENVELOPE.header(PAGE)


def test_missing_short_and_long_values() -> None:
    assert reason(None) is FaultReason.MISSING
    for length in (0, 1, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 999):
        assert reason(sealed()[:length]) is FaultReason.SHORT
    assert reason(sealed() + b"x") is FaultReason.SHORT


def test_b039_another_fingerprint_is_refused() -> None:
    assert reason(sealed(envelope=Envelope("model-b"))) is FaultReason.MISMATCH


def test_b087_another_page_under_this_name_is_refused() -> None:
    assert reason(sealed(), name=PageName(bytes(16))) is FaultReason.MISMATCH


def test_another_number_of_tokens_is_refused() -> None:
    assert reason(sealed(), tokens=15) is FaultReason.WRONG_TOKENS


@given(st.integers(0, len(sealed()) * 8 - 1))
def test_every_flipped_bit_is_noticed(bit: int) -> None:
    value = bytearray(sealed())
    value[bit // 8] ^= 1 << bit % 8
    found = reason(bytes(value))
    assert found in {FaultReason.MISMATCH, FaultReason.SHORT, FaultReason.CORRUPT}
    if bit // 8 >= HEADER_BYTES:
        assert found is FaultReason.CORRUPT


@pytest.mark.parametrize("value", [b"", b"\0" * 80, b"TPKV" + b"\0" * 200])
def test_junk_is_a_fault_not_an_exception(value: bytes) -> None:
    assert reason(value) in {FaultReason.SHORT, FaultReason.MISMATCH}
