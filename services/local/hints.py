"""Commands to type, as hints and errors name them."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path


def tokenpath(arguments: str) -> str:
    """`tokenpath <arguments>` as a shell in the current folder can run it."""
    program = Path(sys.executable).with_name("tokenpath")
    if shutil.which("tokenpath") == str(program):
        return f"tokenpath {arguments}"
    if program.is_relative_to(Path.cwd()):
        program = program.relative_to(Path.cwd())
    return f"{program} {arguments}"
