"""What a load run can be told by environment: TOKENPATH_LOAD_*."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict


class LoadOptions(BaseSettings):
    """Options of the virtual users; each is TOKENPATH_LOAD_<NAME>."""

    model_config = SettingsConfigDict(env_prefix="TOKENPATH_LOAD_", frozen=True)

    model: str = ""  # empty: the first that the gateway lists
    api_key: str = ""
    prompts: Path | None = None  # a text file, one prompt a line; without it the built-in mix
    max_tokens: int = 48
    temperature: float = 0.0
    think_s: float = 1.0  # mean pause between a user's requests, exponentially distributed; 0: none
    seed: int = 1
    timeout_s: float = 120.0
    records: Path | None = None  # where to write one JSON line a request
    slo_ttft_ms: float | None = 1000.0
    slo_tpot_ms: float | None = 100.0
    slo_e2e_ms: float | None = None


def load_options() -> LoadOptions:
    """Read the environment. Raises SystemExit that names the variable at fault."""
    try:
        return LoadOptions()
    except ValidationError as error:
        first = error.errors()[0]
        raise SystemExit(f"TOKENPATH_LOAD_{'_'.join(map(str, first['loc'])).upper()}: {first['msg']}") from None
