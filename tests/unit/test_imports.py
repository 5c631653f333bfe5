"""Imports run one way, and only the engine's torch side needs torch."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SERVICES = {"gateway", "auth", "router", "scheduler", "prefill", "decode", "detokenizer"}
SHARED = {"engine", "kvcache", "tokenization", "platform"}
ALLOWED = {
    **{service: SHARED | {service} for service in SERVICES},
    "engine": SHARED,
    "kvcache": {"kvcache", "platform"},
    "tokenization": {"tokenization", "platform"},
    "platform": {"platform"},
    "local": {"local", "platform", "tokenization"},
}


def imported_packages(source: Path) -> set[str]:
    names: list[str] = []
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names.append(node.module)
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    return {name.split(".")[1] for name in names if name.startswith("services.")}


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_a_package_imports_only_what_lies_below_it(package: str) -> None:
    for source in (ROOT / "services" / package).rglob("*.py"):
        forbidden = imported_packages(source) - ALLOWED[package]
        assert not forbidden, f"{source.relative_to(ROOT)} imports {sorted(forbidden)}"


@pytest.mark.parametrize(
    "module", ["gateway.app", "auth.app", "router.app", "scheduler.app", "detokenizer.app", "local.cli"]
)
def test_the_control_plane_needs_no_torch(module: str) -> None:
    code = f"import services.{module}, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_a_scripted_worker_needs_no_torch() -> None:
    modules = "services.decode.app, services.prefill.app, services.engine.scripted_runner"
    code = f"import {modules}, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
