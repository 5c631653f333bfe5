"""KV page names: equal exactly when everything that the KV bytes depend on is equal."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.kvcache.names import PageName, PageNamer, block_hash

TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=70)
NAMER = PageNamer("model-a", "tenant-a", 16)


def test_names_are_stable_across_versions_and_machines() -> None:
    """Router and workers of different releases must agree: change these only with the page domain."""
    names = PageNamer("fp", "salt", 4).names([1, 2, 3, 4, 70_000, 2**32 - 1], include_partial=True)
    assert [name.hex() for name in names] == ["13754f0ccc494b7566b04949c6109170", "b8a4898f70368e523b24df98c624075e"]
    assert block_hash(names[0]) == 1402113775381334901


def test_b059_b039_fingerprint_salt_and_block_size_separate_names() -> None:
    tokens = list(range(64))
    namers = [
        NAMER,
        PageNamer("model-b", "tenant-a", 16),
        PageNamer("model-a", "tenant-b", 16),
        PageNamer("model-atenant-", "a", 16),
        PageNamer("model-a", "tenant-a", 8),
        PageNamer("model-a", "", 16),
    ]
    names = [name for namer in namers for name in namer.names(tokens)]
    assert len(set(names)) == len(names)


def test_a_page_is_named_by_everything_before_it() -> None:
    first = NAMER.names([1, *range(47)])
    second = NAMER.names([2, *range(47)])
    assert not set(first) & set(second)


@given(TOKENS, TOKENS)
def test_sequences_share_exactly_the_names_of_their_common_prefix(left: list[int], right: list[int]) -> None:
    common = 0
    while common < min(len(left), len(right)) and left[common] == right[common]:
        common += 1
    for partial in (False, True):
        a, b = NAMER.names(left, include_partial=partial), NAMER.names(right, include_partial=partial)
        shared = sum(x == y for x, y in zip(a, b, strict=False))
        assert shared == common // 16 + (partial and left == right and common % 16 > 0)
        assert len(set(a) & set(b)) == shared


@given(TOKENS, st.integers(1, 20), st.integers(1, 30))
def test_a_growing_sequence_gets_the_names_of_the_whole(tokens: list[int], block_size: int, stride: int) -> None:
    namer = PageNamer("fp", "salt", block_size)
    names: list[PageName] = []
    for end in range(0, len(tokens) + stride, stride):
        namer.extend(names, tokens[:end])
    assert names == namer.names(tokens)


def test_a_partly_filled_page_is_not_the_full_page_nor_a_longer_one() -> None:
    pages = [NAMER.names([7] * length, include_partial=True)[0] for length in range(1, 17)]
    assert len(set(pages)) == 16
    assert NAMER.names([7] * 15) == []
    assert NAMER.names([], include_partial=True) == []


@pytest.mark.parametrize("bad", [[-1], [2**32]])
def test_a_token_id_that_does_not_fit_is_an_error_not_another_name(bad: list[int]) -> None:
    with pytest.raises(OverflowError):
        NAMER.names(bad * 16)


def test_a_page_of_no_tokens_or_too_many_can_not_be_named() -> None:
    with pytest.raises(ValueError, match="1 to 16"):
        NAMER.next(None, [])
    with pytest.raises(ValueError, match="1 to 16"):
        NAMER.next(None, [1] * 17)
    with pytest.raises(ValueError, match="block_size"):
        PageNamer("fp", "salt", 0)


@given(st.binary(min_size=16, max_size=16))
def test_block_hash_is_the_signed_first_half(name: bytes) -> None:
    value = block_hash(PageName(name))
    assert -(2**63) <= value < 2**63
    assert value.to_bytes(8, "big", signed=True) == name[:8]


def test_naming_needs_neither_torch_nor_redis() -> None:
    code = "import sys, services.kvcache.names; assert not {'torch', 'redis', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
