"""What a script may say."""

from __future__ import annotations

import grpc
import pytest

from services.engine.script import ScriptReader
from services.platform.failures import Failure
from tests.unit.engine_core_helpers import ByteVocabulary

READER = ScriptReader(ByteVocabulary())


def read(text: str, choice: int = 0) -> bytes:
    return bytes(READER.read(list(text.encode()), choice).token_ids)


def test_pieces_tokens_bytes_and_text() -> None:
    assert read('SCRIPT:{"pieces":["x","D"]}') == b"xD"
    assert read('SCRIPT:{"tokens":[104,105]}') == b"hi"
    assert read('SCRIPT:{"bytes":"eab080"}') == "가".encode()
    assert read('before SCRIPT:{"text":"a b","repeat":2} after}') == b"a ba b"


def test_the_last_script_counts_and_choices_differ() -> None:
    both = 'SCRIPT:{"text":"old"} then SCRIPT:{"text":"new","choices":[{},{"text":"other"}]}'
    assert [read(both, choice) for choice in range(2)] == [b"new", b"other"]


def test_without_a_script_the_prompt_decides() -> None:
    assert read("one prompt") == read("one prompt") != read("another")
    assert read("one prompt").startswith(b" tok")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('SCRIPT:{"pieces":["xD"]}', "'xD'"),
        ('SCRIPT:{"tokens":[999]}', "999"),
        ('SCRIPT:{"tekst":"x"}', "'tekst'"),
        ('SCRIPT:{"text":', "JSON"),
        ('SCRIPT:{"bytes":"zz"}', "type"),
        ('SCRIPT:{"text":"","finish":"length"}', "nothing"),
        ('SCRIPT:{"choices":3}', "choices"),
        ('SCRIPT:{"pieces":[5]}', "type"),
        ('SCRIPT:{"text":"x","fail_after":"soon"}', "type"),
        ('SCRIPT:{"text":"x","hang_after":[]}', "type"),
        ('SCRIPT:{"text":"x","itl_ms":NaN}', "itl_ms"),
        ('SCRIPT:{"text":"x","ttft_ms":1e999}', "ttft_ms"),
        ('SCRIPT:{"text":"x","repeat":Infinity}', "type"),
        ('SCRIPT:{"text":"x","repeat":1000000000}', "more than"),
        ('SCRIPT:{"text":' + "[" * 5000, "deeply"),
    ],
)
def test_a_script_that_cannot_be_said_is_refused_by_name(text: str, named: str) -> None:
    with pytest.raises(Failure, match=named) as caught:
        read(text)
    assert caught.value.status is grpc.StatusCode.INVALID_ARGUMENT
