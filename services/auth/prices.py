"""What tokens cost. Integers all the way: a price is nano-dollars per million tokens."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

DEFAULT_PRICES = Path(__file__).with_name("prices.toml")
_NANO = 10**9
_MILLION = 10**6


@dataclass(frozen=True, slots=True)
class Price:
    """Nano-dollars (1e-9 US dollars) per million tokens of each kind."""

    input: int
    cached_input: int
    output: int


@dataclass(frozen=True, slots=True)
class PriceTable:
    """Prices by model, and those of any other model."""

    version: str
    default: Price
    models: Mapping[str, Price]

    def cost_nano_usd(self, model: str, *, prompt: int, cached: int, completion: int) -> int:
        """The cost of one request in nano-dollars, rounded half up once. cached: those of the prompt's tokens
        that came from a cache. ValueError: more cached than prompt tokens.
        """
        if cached > prompt:
            raise ValueError(f"cached_tokens {cached} exceed prompt_tokens {prompt}")
        price = self.models.get(model, self.default)
        total = (prompt - cached) * price.input + cached * price.cached_input + completion * price.output
        return (total + _MILLION // 2) // _MILLION


def load_prices(path: Path) -> PriceTable:
    """Reads a price table. ValueError names the file and what is wrong in it."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"), parse_float=Decimal)
        return PriceTable(
            version=_text(data["version"]),
            default=_price(data["default"]),
            models={name: _price(entry) for name, entry in data.get("models", {}).items()},
        )
    except OSError as error:
        raise ValueError(f"price table {path}: {error.strerror}") from None
    except KeyError as error:
        raise ValueError(f"price table {path}: {error} is missing") from None
    except (tomllib.TOMLDecodeError, TypeError, ValueError, InvalidOperation) as error:
        raise ValueError(f"price table {path}: {error}") from None


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("version must be a text")
    return value


def _price(entry: dict[str, Any]) -> Price:
    return Price(_nano(entry["input"]), _nano(entry["cached_input"]), _nano(entry["output"]))


def _nano(dollars: Decimal | int) -> int:
    nano = Decimal(dollars) * _NANO
    if not nano.is_finite() or nano < 0 or nano != int(nano):
        raise ValueError(f"{dollars} is not a price: at least 0, at most 9 decimals")
    return int(nano)
