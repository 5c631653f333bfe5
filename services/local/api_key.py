"""The API key of a local stack: one of the tenant `demo`, kept from one start to the next."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

import httpx

from services.local.errors import StackError
from services.local.folder import PROJECT, StackFolder

TENANT = "demo"
PROVISION_S = 30.0


def working_key(folder: StackFolder, urls: Mapping[str, str], environment: Mapping[str, str]) -> str:
    """The key of the last start if the gateway still takes it, else a new one. Raises StackError without one."""
    path = folder.path / "api_key"
    if path.is_file():
        kept = path.read_text().strip()
        if _accepted(urls["gateway"], kept):
            return kept
    key = _provision(urls["state"], environment)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(key + "\n")
    return key


def _accepted(gateway_url: str, key: str) -> bool:
    headers = {"authorization": f"Bearer {key}"}
    try:
        return httpx.get(f"{gateway_url}/v1/models", headers=headers, timeout=5.0, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def _provision(state_url: str, environment: Mapping[str, str]) -> str:
    command = (sys.executable, "-m", "services.auth.provision", "--state-url", state_url, "--tenant", TENANT)
    made = subprocess.run(
        command, cwd=PROJECT, env=dict(environment), capture_output=True, text=True, timeout=PROVISION_S
    )
    lines = made.stdout.split()
    if made.returncode != 0 or not lines:
        raise StackError(f"no API key could be made: {made.stderr.strip()[-500:]}")
    return lines[-1]
