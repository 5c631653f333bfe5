"""Load tools that others wrote, each in the environment that `make test-clients` installs it into."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from services.tokenization.source import DEFAULT_MODEL, DEFAULT_SERVED_NAME, resolve_model
from tests.e2e.api import script

MODEL = DEFAULT_SERVED_NAME
REQUESTS = 20
CONCURRENT = 4
OUTPUT_TOKENS = 16
TTFT_MS, ITL_MS = 30.0, 10.0
SLOW_MS = 500.0  # a busy machine is slow, but a figure in the wrong unit would be a thousand times off

LONG = script(pieces=[" and", " so"], repeat=100, ttft_ms=TTFT_MS, itl_ms=ITL_MS)
# Ends after eight tokens and starts again: only a tool whose ignore_eos is obeyed gets sixteen. One of them is the
# end-of-sequence token, which has no text and so no chunk.
SHORT = script(pieces=[" and", " so"], repeat=4, ttft_ms=TTFT_MS, itl_ms=ITL_MS)
SAME_WORDS = " the same words in all prompts" * 10

_ENVIRONMENTS = Path(__file__).resolve().parents[2] / "build" / "clients"
_RUN_S = 200.0
TEST_S = 280.0


def needs(tool: str) -> pytest.MarkDecorator:
    """Skips, before any fixture is made, where the tool is not installed."""
    installed = any((_ENVIRONMENTS / tool).glob(".installed-*"))
    return pytest.mark.skipif(not installed, reason=f"{tool} is not installed: make test-clients does it")


def tokenizer_folder() -> Path:
    """The served model's tokenizer, as Hugging Face lays it out. A stack must have been started before."""
    return resolve_model(DEFAULT_MODEL, weights=False).folder


def run_tool(tool: str, arguments: list[str], folder: Path, environment: Mapping[str, str]) -> None:
    """Run it in `folder` until it ends, with no way to the Hugging Face hub. All that it started ends with it."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("AIPERF_", "GUIDELLM_", "HF_"))}
    nowhere = {"HF_HOME": str(folder / "hf"), "HF_ENDPOINT": "http://127.0.0.1:9", "OMP_NUM_THREADS": "1"}
    log = folder / "tool.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(_ENVIRONMENTS / tool / "bin" / "python"), "-m", tool, *arguments],
            cwd=folder,
            env={**inherited, **nowhere, **environment},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            status = process.wait(_RUN_S)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    said = log.read_text(errors="replace")[-4000:]
    assert status == 0, f"{tool} ended with {status} (None: not within {_RUN_S:.0f} s):\n{said}"
