"""Generate the Python stubs of `protos/` into `tokenpath/` at the project's root.

The stubs are never committed: run this after a change of a .proto file (`make setup` does).
Typed stubs (`*.pyi`) come along when mypy-protobuf is installed.
"""

from __future__ import annotations

import shutil
import sys
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted((ROOT / "protos" / "tokenpath" / "v1").glob("*.proto"))


def build(target: Path = ROOT) -> None:
    """Write `tokenpath/v1/*_pb2*.py[i]` below `target`. Raises SystemExit when protoc refuses a file."""
    arguments = [
        "protoc",
        f"-I{ROOT / 'protos'}",
        f"-I{files('grpc_tools') / '_proto'}",
        f"--python_out={target}",
        f"--grpc_python_out={target}",
    ]
    if shutil.which("protoc-gen-mypy", path=str(Path(sys.executable).parent)):
        plugins = Path(sys.executable).parent
        arguments += [
            f"--plugin=protoc-gen-mypy={plugins / 'protoc-gen-mypy'}",
            f"--plugin=protoc-gen-mypy_grpc={plugins / 'protoc-gen-mypy_grpc'}",
            f"--mypy_out=quiet:{target}",
            f"--mypy_grpc_out=quiet:{target}",
        ]
    if protoc.main([*arguments, *map(str, SOURCES)]) != 0:
        raise SystemExit("protoc refused a .proto file; its message is above")
    for package in (target / "tokenpath", target / "tokenpath" / "v1"):
        (package / "__init__.py").touch()


if __name__ == "__main__":
    build()
