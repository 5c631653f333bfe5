"""Where a stack keeps its files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

FOLDER_VARIABLE = "TOKENPATH_LOCAL_FOLDER"
PROJECT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class StackFolder:
    """The files of one stack. Two copies of the project are two folders, and know nothing of each other."""

    path: Path

    @staticmethod
    def from_env(environment: Mapping[str, str]) -> StackFolder:
        """The folder that TOKENPATH_LOCAL_FOLDER names. Else `.tokenpath` beside the code of a checkout, or in the
        current folder when the package is installed elsewhere."""
        if named := environment.get(FOLDER_VARIABLE):
            return StackFolder(Path(named).absolute())
        base = PROJECT if (PROJECT / "pyproject.toml").is_file() else Path.cwd()
        return StackFolder(base / ".tokenpath")

    @property
    def record(self) -> Path:
        return self.path / "stack.json"

    @property
    def lock(self) -> Path:
        return self.path / "lock"

    @property
    def last_request(self) -> Path:
        return self.path / "last_request"

    @property
    def jaeger_file(self) -> Path:
        return self.path / "traces.jaeger.json"

    def log(self, name: str) -> Path:
        return self.path / "logs" / f"{name}.log"

    def data(self, name: str) -> Path:
        return self.path / "data" / name
