"""GuideLLM runs unchanged against the gateway, and its figures are right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.clients.tool import (
    CONCURRENT,
    ITL_MS,
    MODEL,
    OUTPUT_TOKENS,
    REQUESTS,
    SAME_WORDS,
    SHORT,
    SLOW_MS,
    TEST_S,
    TTFT_MS,
    needs,
    run_tool,
    tokenizer_folder,
)
from tests.stack import RunningStack

pytestmark = [needs("guidellm"), pytest.mark.timeout(TEST_S)]


def test_streamed_chat(stack: RunningStack, tmp_path: Path) -> None:
    """Synthetic prompts with one prefix. The tool asks /health and takes the model's name from /v1/models."""
    data = f"kind=synthetic_text,prompt_tokens=64,output_tokens={OUTPUT_TOKENS},prefix_tokens=64,prefix_count=1"
    benchmark = run(stack, tmp_path, "/v1/chat/completions", data)
    check(benchmark)
    for request in benchmark["requests"]["successful"]:
        assert request["prompt_tokens"] >= 128


def test_streamed_completions(stack: RunningStack, tmp_path: Path) -> None:
    """Prompts from a file, answers at the script's pace, ends of sequence that are ignored."""
    rows = [
        {"prompt": f"{SHORT}{SAME_WORDS} {number}", "output_tokens_count": OUTPUT_TOKENS} for number in range(REQUESTS)
    ]
    (tmp_path / "prompts.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    benchmark = run(stack, tmp_path, "/v1/completions", f"kind=json_file,path={tmp_path / 'prompts.jsonl'}")
    check(benchmark)
    assert median(benchmark, "time_to_first_token_ms") >= TTFT_MS
    assert median(benchmark, "inter_token_latency_ms") >= ITL_MS * 0.8


def run(stack: RunningStack, folder: Path, endpoint: str, data: str) -> dict[str, Any]:
    """A run's only benchmark."""
    report = folder / "report.json"
    backend = f"kind=openai_http,target={stack.gateway_url},api_key={stack.api_key},request_format={endpoint}"
    load = ["--profile", f"kind=concurrent,streams={CONCURRENT}", "--constraint", f"kind=max_requests,count={REQUESTS}"]
    output = ["--output", f"kind=json,path={report}", "--disable-console"]
    arguments = ["run", "--backend", backend, "--tokenizer", f"kind=hf_auto,model={tokenizer_folder()}"]
    # With several worker processes its last request can be missing from the report, although it was answered.
    environment = {"HF_HUB_OFFLINE": "1", "GUIDELLM__MAX_WORKER_PROCESSES": "1"}
    run_tool("guidellm", [*arguments, *load, "--data", data, *output], folder, environment)
    (benchmark,) = json.loads(report.read_text())["benchmarks"]
    return dict(benchmark)


def check(benchmark: dict[str, Any]) -> None:
    """All succeeded, got every token asked for one by one, and prompts that begin alike were found in the cache."""
    totals = benchmark["metrics"]["request_totals"]
    assert totals == {"successful": REQUESTS, "errored": 0, "incomplete": 0, "total": REQUESTS}
    requests = benchmark["requests"]["successful"]
    for request in requests:
        assert json.loads(request["request_args"])["body"]["model"] == MODEL
        assert request["output_tokens"] == OUTPUT_TOKENS
        assert 0 < request["time_to_first_token_ms"] < request["request_latency"] * 1000
    assert max(request["cached_tokens"] for request in requests) >= 48
    assert median(benchmark, "time_to_first_token_ms") < SLOW_MS
    assert 0 <= median(benchmark, "inter_token_latency_ms") < SLOW_MS


def median(benchmark: dict[str, Any], metric: str) -> float:
    """Over the successful requests, ms."""
    return float(benchmark["metrics"][metric]["successful"]["median"])
