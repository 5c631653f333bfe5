"""What a user may choose about the local stack: `TOKENPATH_LOCAL_<NAME>`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields

from services.local.errors import StackError
from services.local.folder import FOLDER_VARIABLE

PREFIX = "TOKENPATH_LOCAL_"
CHOICES = {"engine": ("torch", "scripted"), "mode": ("disaggregated", "aggregated")}


@dataclass(frozen=True)
class StackConfig:
    """Sizes and choices of one stack. Ports of 0 and threads of 0 mean "decide for me"."""

    engine: str = "torch"
    model: str = "smollm2"
    dtype: str = "bfloat16"
    mode: str = "disaggregated"
    policy: str = "prefix_minus_load"
    prefill: int = 1
    decode: int = 1
    threads: int = 0
    kv_blocks: int = 0
    kv_store_mb: int = 512
    gateway_port: int = 0

    def __post_init__(self) -> None:
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise StackError(f"{PREFIX}{name.upper()} is {getattr(self, name)!r}; it can be {' or '.join(allowed)}")
        if self.decode < 1:
            raise StackError(f"{PREFIX}DECODE is {self.decode}; a stack needs at least one decode worker")
        if self.prefill < 1 and self.mode == "disaggregated":
            raise StackError(
                f"{PREFIX}PREFILL is {self.prefill}, so set {PREFIX}MODE=aggregated or start a prefill worker"
            )
        if not 0 <= self.gateway_port <= 65535:
            raise StackError(f"{PREFIX}GATEWAY_PORT is {self.gateway_port}; a port is between 1 and 65535")

    @staticmethod
    def from_env(environment: Mapping[str, str]) -> StackConfig:
        """Read `TOKENPATH_LOCAL_*`. Raises StackError naming an unknown key or a value of the wrong kind."""
        known = {f"{PREFIX}{field.name.upper()}": field for field in fields(StackConfig)}
        chosen: dict[str, str | int] = {}
        for key in sorted(environment):
            if not key.startswith(PREFIX) or key == FOLDER_VARIABLE:
                continue
            if key not in known:
                raise StackError(f"{key} is not a setting; there are {', '.join(sorted({*known, FOLDER_VARIABLE}))}")
            field, text = known[key], environment[key]
            if field.type == "int":
                if not text.isdecimal():
                    raise StackError(f"{key} is {text!r}; it must be a whole number, 0 or more")
                chosen[field.name] = int(text)
            else:
                chosen[field.name] = text
        return StackConfig(**chosen)  # type: ignore[arg-type]

    @property
    def worker_threads(self) -> int:
        """Compute threads of one worker: the machine's cores shared out, so that workers do not fight for them."""
        return self.threads or max(1, (os.cpu_count() or 1) // max(1, self.prefill + self.decode))
