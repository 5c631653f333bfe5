"""B073: prompts far above gRPC's default limit of 4 MiB pass every hop unchanged; above the gateway's limit: 413."""

from __future__ import annotations

import json
import random
import shutil
import zlib
from collections.abc import Iterator

import httpx
import pytest

from services.tokenization.source import resolve_model
from services.tokenization.tokenizer import Tokenizer
from tests.e2e.metrics import metric
from tests.stack import RunningStack, running_stack

MB = 1_000_000
PAGE_TOKENS = 600_000  # 4.8 MB of the scripted engine's KV a page: above 4 MiB too
MAX_BODY = 18 * MB
LONGEST = 3_000_000

SIZES = {"128 kB": 128_000, "1 MB": MB, "3.9 MB": 3_900_000, "4.1 MB": 4_100_000, "16 MB": 16 * MB}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load("smollm2")


@pytest.fixture(scope="module")
def stack(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    """The default model's tokenizer with a context of millions of tokens, which only the scripted engine can have."""
    folder = tmp_path_factory.mktemp("model") / "long"
    files = resolve_model("smollm2", weights=False).folder
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(files / name, folder / name)
    config = json.loads((files / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": LONGEST}))
    workers = {"BLOCK_SIZE": str(PAGE_TOKENS), "KV_BLOCKS": "12", "STEP_TOKENS": str(LONGEST), "KV_WAIT_S": "10"}
    env = {
        "TOKENPATH_LOCAL_MODEL": str(folder),
        "TOKENPATH_GATEWAY_MAX_BODY_BYTES": str(MAX_BODY),
        "TOKENPATH_GATEWAY_CONTROL_TIMEOUT_S": "20",  # this is about sizes; a busy machine takes its time
        **{f"TOKENPATH_{role}_{name}": value for role in ("PREFILL", "DECODE") for name, value in workers.items()},
    }
    with running_stack(tmp_path_factory.mktemp("long"), env=env) as running:
        yield running


def expected(token_ids: list[int]) -> str:
    """What the scripted engine says to a prompt without a script: it begins with a digest of all token ids."""
    return f" tok{zlib.crc32(repr(tuple(token_ids)).encode()) % 1000} tok"


def post(stack: RunningStack, body: bytes) -> httpx.Response:
    headers = {**stack.headers, "content-type": "application/json"}
    return httpx.post(f"{stack.gateway_url}/v1/completions", content=body, headers=headers, timeout=120)


def check(stack: RunningStack, prompt: str | list[int], token_ids: list[int]) -> None:
    fields = {"model": "long", "max_tokens": 12, "temperature": 0}
    answer = post(stack, json.dumps({**fields, "prompt": prompt}).encode())
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["text"].startswith(expected(token_ids))
    assert answer.json()["usage"]["prompt_tokens"] == len(token_ids)


@pytest.mark.parametrize("size", ["128 kB", "1 MB"])
def test_b073_text(stack: RunningStack, tokenizer: Tokenizer, size: str) -> None:
    dice = random.Random(size)
    candidates = [tokenizer.decode([token_id]) for token_id in range(1000, tokenizer.vocab_size)]
    words = [word for word in candidates if word[0] == " " and word[1:].isalpha() and word.isascii() and len(word) > 9]
    text = "".join(dice.choices(words, k=SIZES[size] // 11))
    check(stack, text, tokenizer.encode(text, add_special_tokens=False))


@pytest.mark.parametrize("size", SIZES)
def test_b073_token_ids(stack: RunningStack, tokenizer: Tokenizer, size: str) -> None:
    """Both workers see exactly these ids; pages travel, and none of them is lost or computed twice."""
    dice = random.Random(size)
    token_ids = dice.choices(range(10_000, 49_000), k=SIZES[size] // 7)  # "12345, " each
    before = metric(stack, "decode-0", "tokenpath_kv_pages_total")
    check(stack, token_ids, token_ids)
    pages = -(-len(token_ids) // PAGE_TOKENS)
    assert metric(stack, "decode-0", "tokenpath_kv_pages_total") == before + pages
    fetched = httpx.get(stack.metrics_url("decode-0")).text
    assert all(f'result="{bad}"' not in fetched for bad in ("missing", "corrupt", "mismatch", "late", "unavailable"))


def test_b073_above_the_limit(stack: RunningStack) -> None:
    """413 with and without a declared length; nothing was tried and the stack lives."""
    fallbacks = metric(stack, "gateway", "tokenpath_gateway_fallbacks_total")
    body = json.dumps({"model": "long", "prompt": "x" * MAX_BODY}).encode()
    for content in (body, iter([body[: MAX_BODY // 2], body[MAX_BODY // 2 :]])):
        headers = {**stack.headers, "content-type": "application/json"}
        answer = httpx.post(f"{stack.gateway_url}/v1/completions", content=content, headers=headers, timeout=60)
        assert answer.status_code == 413
        assert answer.json()["error"]["code"] == "request_too_large"
    too_many = json.dumps({"model": "long", "prompt": [11] * LONGEST}).encode()
    assert post(stack, too_many).json()["error"]["code"] == "context_length_exceeded"
    assert metric(stack, "gateway", "tokenpath_gateway_fallbacks_total") == fallbacks
    check(stack, [11, 12, 13], [11, 12, 13])
