"""The default model's tokenizer, made from the GGUF file's metadata, against Hugging Face transformers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from services.tokenization.source import resolve_model
from services.tokenization.tokenizer import Tokenizer

pytestmark = pytest.mark.model

TEXTS = [
    "",
    "Hello",
    "What is the capital of France?",
    "  x   12 345\n\n\t 한국 🏳️‍🌈 é",
    "don't I'LL <|im_end|>x<repo_name> <|endoftext|>",
    "def f(x):\n    return x ** 2  # 10000\r\n  \r\n",
    "e\u0301 ﬁ Ωmega \u200b\x00\x7f",
]
CHATS = [
    [{"role": "user", "content": "What is the capital of France?"}],
    [{"role": "system", "content": "a <b> & 'c'"}, {"role": "user", "content": "한\n"}],
    [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "hello <|im_end|>"},
        {"role": "user", "content": "?"},
    ],
]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load("smollm2")


@pytest.fixture(scope="module")
def transformers_tokenizer() -> Any:
    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers import AutoTokenizer

    gguf = resolve_model("smollm2").gguf_path
    assert gguf is not None
    return AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)


def test_what_is_known_of_the_model(tokenizer: Tokenizer) -> None:
    assert tokenizer.name == "SmolLM2-135M-Instruct"
    assert tokenizer.vocab_size == 49152
    assert tokenizer.max_model_len == 8192
    assert tokenizer.eos_token_ids == {2}
    assert tokenizer.bos_token_id == 1
    assert tokenizer.max_token_bytes == max(len(tokenizer.token_bytes(each)) for each in range(49152))


@pytest.mark.parametrize("text", TEXTS)
def test_ids_equal_those_of_transformers(tokenizer: Tokenizer, transformers_tokenizer: Any, text: str) -> None:
    assert tokenizer.encode(text, add_special_tokens=True) == transformers_tokenizer.encode(text)


@pytest.mark.parametrize("messages", CHATS)
def test_chats_equal_those_of_transformers(
    tokenizer: Tokenizer, transformers_tokenizer: Any, messages: list[dict[str, str]]
) -> None:
    text = tokenizer.render_chat(messages)
    assert text == transformers_tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    ids = transformers_tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    assert tokenizer.encode(text, add_special_tokens=False) == ids


def test_every_token_decodes_as_in_transformers(tokenizer: Tokenizer, transformers_tokenizer: Any) -> None:
    backend = transformers_tokenizer.backend_tokenizer
    ids = range(tokenizer.vocab_size)
    assert [tokenizer.decode([each], keep_special=True) for each in ids] == [
        backend.decode([each], skip_special_tokens=False) for each in ids
    ]


@pytest.mark.parametrize("text", TEXTS)
def test_text_survives_the_way_there_and_back(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False), keep_special=True) == text


def test_special_tokens_are_no_text_unless_asked_for(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("a<|im_end|>b", add_special_tokens=False)
    assert [tokenizer.is_special(each) for each in ids] == [False, True, False]
    assert tokenizer.decode(ids) == "ab"
    assert tokenizer.decode(ids, keep_special=True) == "a<|im_end|>b"


def test_an_id_beyond_the_vocabulary_stands_for_nothing(tokenizer: Tokenizer) -> None:
    assert tokenizer.token_bytes(tokenizer.vocab_size) == b""
    assert tokenizer.token_bytes(-1) == b""


def test_b025_the_unfinished_end_of_a_prompt(tokenizer: Tokenizer) -> None:
    byte_ids = {tokenizer.token_bytes(each): each for each in range(tokenizer.vocab_size)}
    ids = [byte_ids[b"a"], *(byte_ids[bytes((byte,))] for byte in "😀".encode())]
    assert [tokenizer.prompt_tail(ids[:end]) for end in range(6)] == [
        b"",
        b"",
        b"\xf0",
        b"\xf0\x9f",
        b"\xf0\x9f\x98",
        b"",
    ]


def test_the_cache_is_made_once_and_found_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TOKENPATH_CACHE_DIR", str(tmp_path))
    first = Tokenizer.load("smollm2")
    files = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    assert sorted(path.name for path in files) == ["generation_config.json", "tokenizer.json", "tokenizer_config.json"]
    again = Tokenizer.load("smollm2")
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()} == files
    assert again.fingerprint == first.fingerprint
