"""A service that can't start, or is told to end before it serves."""

from __future__ import annotations

import subprocess
import sys
import time

SERVICE = """
import asyncio, time
from contextlib import asynccontextmanager
from services.platform.server import run_service
from services.platform.settings import ServiceSettings, settings_config
from services.platform.startup import StartupError

class Settings(ServiceSettings):
    model_config = settings_config("example")

@asynccontextmanager
async def build(runtime):
    {build}
    yield ()

run_service("example", Settings, build)
"""
LOADING = 'print("loading", flush=True); await asyncio.to_thread(time.sleep, 60)'


def service(build: str) -> subprocess.Popen[str]:
    code = SERVICE.format(build=build)
    return subprocess.Popen(
        (sys.executable, "-c", code), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={"PATH": ""}
    )


def test_a_service_that_still_loads_ends_at_once_when_told() -> None:
    process = service(LOADING)
    assert process.stdout is not None
    assert process.stdout.readline() == "loading\n"
    told = time.monotonic()
    process.terminate()
    _, said = process.communicate(timeout=10)
    assert time.monotonic() - told < 2
    assert process.returncode == 128 + 15
    assert "Traceback" not in said


def test_a_known_reason_not_to_start_is_one_line() -> None:
    process = service('raise StartupError("no such model")')
    _, said = process.communicate(timeout=20)
    assert (process.returncode, said) == (1, "tokenpath example: no such model\n")


def test_a_bug_in_the_start_keeps_its_traceback() -> None:
    process = service('raise KeyError("bug")')
    _, said = process.communicate(timeout=20)
    assert process.returncode == 1
    assert "Traceback" in said
