"""What auth can be told: TOKENPATH_AUTH_<NAME>."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, field_validator

from services.auth.prices import DEFAULT_PRICES, load_prices
from services.platform.settings import ServiceSettings, settings_config


class AuthSettings(ServiceSettings):
    model_config = settings_config("auth")

    state_url: str = Field(default="redis://127.0.0.1:6379/0", description="Redis that holds keys and the ledger")
    prices: Path = Field(default=DEFAULT_PRICES, description="price table, in the form of prices.toml")

    @field_validator("prices")
    @classmethod
    def _readable(cls, path: Path) -> Path:
        load_prices(path)
        return path
