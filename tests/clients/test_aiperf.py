"""AIPerf runs unchanged against the gateway, and its figures are right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.clients.tool import (
    CONCURRENT,
    ITL_MS,
    LONG,
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

pytestmark = [needs("aiperf"), pytest.mark.timeout(TEST_S)]


def test_streamed_chat(stack: RunningStack, tmp_path: Path) -> None:
    """Synthetic prompts behind one system prompt. The tool makes them equally long by its own count, with tokenizer and
    chat template, so they must be equally long by ours."""
    prompts = ["--isl", "64", "--isl-stddev", "0", "--osl", str(OUTPUT_TOKENS), "--osl-stddev", "0"]
    count = ["--apply-chat-template", "--random-seed", "1"]
    report = profile(stack, tmp_path, "chat", "--system-prompt", LONG + SAME_WORDS, *prompts, *count)
    check(report, chunks=OUTPUT_TOKENS)
    assert value(report, "osl_mismatch_count") == 0
    assert value(report, "usage_prompt_tokens", "min") == value(report, "usage_prompt_tokens", "max") > 64


def test_streamed_completions(stack: RunningStack, tmp_path: Path) -> None:
    """Prompts from a file, the server's token counts, and ends of sequence that are ignored."""
    lines = [json.dumps({"text": f"{SHORT}{SAME_WORDS} {number}"}) for number in range(REQUESTS)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(lines))
    prompts = ["--input-file", str(tmp_path / "prompts.jsonl"), "--custom-dataset-type", "single_turn"]
    length = ["--osl", str(OUTPUT_TOKENS), "--use-server-token-count"]
    report = profile(stack, tmp_path, "completions", *prompts, *length)
    check(report, chunks=OUTPUT_TOKENS - 1)


def profile(stack: RunningStack, folder: Path, endpoint: str, *options: str) -> dict[str, Any]:
    """A run's report."""
    server = ["--model", MODEL, "--url", stack.gateway_url, "--api-key", stack.api_key, "--streaming"]
    load = ["--concurrency", str(CONCURRENT), "--request-count", str(REQUESTS), "--extra-inputs", "ignore_eos:true"]
    local = ["--tokenizer", str(tokenizer_folder()), "--ui", "none", "--no-gpu-telemetry"]
    small = ["--workers-max", "1", "--record-processors", "1"]
    arguments = ["profile", "--endpoint-type", endpoint, *server, *load, *local, *small, *options]
    run_tool("aiperf", [*arguments, "--output-artifact-dir", str(folder / "out")], folder, {})
    report: dict[str, Any] = json.loads((folder / "out" / "profile_export_aiperf.json").read_text())
    scraped = json.loads((folder / "out" / "server_metrics_export.json").read_text())
    assert scraped["summary"]["endpoints_successful"] == [f"{stack.gateway_url}/metrics"]
    return report


def check(report: dict[str, Any], chunks: int) -> None:
    """All succeeded, got every token asked for, at the script's pace, in so many chunks of text a request."""
    assert report["is_complete"]
    assert report["error_summary"] == []
    assert value(report, "request_count") == REQUESTS
    assert value(report, "request_error_rate") == 0
    for name in ("usage_completion_tokens", "output_sequence_length"):
        assert {value(report, name, which) for which in ("min", "max")} == {OUTPUT_TOKENS}, name
    assert value(report, "usage_prompt_cache_read_tokens", "max") >= 64
    assert value(report, "time_to_first_token", "min") >= TTFT_MS
    assert value(report, "time_to_first_token", "p50") < SLOW_MS
    assert ITL_MS * 0.8 <= value(report, "inter_token_latency", "p50") < SLOW_MS
    assert report["inter_chunk_latency"]["count"] == REQUESTS * (chunks - 1)


def value(report: dict[str, Any], metric: str, which: str = "avg") -> float:
    """One figure of the report; latencies are in ms."""
    assert metric in report, f"no {metric} among {sorted(report)}"
    return float(report[metric][which])
