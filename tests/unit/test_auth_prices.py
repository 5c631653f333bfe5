"""Costs are whole nano-dollars, rounded once."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from services.auth.prices import DEFAULT_PRICES, Price, PriceTable, load_prices
from services.auth.settings import AuthSettings

COUNT = st.integers(0, 2**32 - 1)
TABLE = PriceTable("v1", Price(50_000_000, 12_500_000, 200_000_000), {"free": Price(0, 0, 0)})


def test_the_default_table_is_readable_and_names_its_version() -> None:
    table = load_prices(DEFAULT_PRICES)
    assert table.version
    assert table.models["SmolLM2-135M-Instruct"] == Price(20_000_000, 5_000_000, 80_000_000)


def test_each_kind_of_token_has_its_price_and_each_model_its_own() -> None:
    def cost(model: str, prompt: int, cached: int, completion: int) -> int:
        return TABLE.cost_nano_usd(model, prompt=prompt, cached=cached, completion=completion)

    assert cost("any", 1_000_000, 0, 0) == 50_000_000
    assert cost("any", 1_000_000, 1_000_000, 0) == 12_500_000
    assert cost("any", 0, 0, 1_000_000) == 200_000_000
    assert cost("any", 1, 1, 0) == 13  # 12.5 rounded half up
    assert cost("free", 1000, 10, 1000) == 0


@given(COUNT, COUNT, COUNT)
def test_a_cost_is_within_half_a_nano_dollar_and_never_negative(prompt: int, cached: int, completion: int) -> None:
    cached = min(prompt, cached)
    cost = TABLE.cost_nano_usd("m", prompt=prompt, cached=cached, completion=completion)
    exact = (prompt - cached) * 50_000_000 + cached * 12_500_000 + completion * 200_000_000
    assert cost >= 0
    assert abs(cost * 1_000_000 - exact) <= 500_000


def test_b044_more_cached_than_prompt_tokens_is_an_error() -> None:
    with pytest.raises(ValueError, match="cached_tokens 11 exceed prompt_tokens 10"):
        TABLE.cost_nano_usd("m", prompt=10, cached=11, completion=0)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('version = "1"', "'default' is missing"),
        ("[default]\ninput = 1\ncached_input = 1\noutput = 1", "'version' is missing"),
        ('version = "1"\n[default]\ninput = 1\ncached_input = 1', "'output' is missing"),
        ('version = "1"\n[default]\ninput = -1\ncached_input = 1\noutput = 1', "-1 is not a price"),
        ('version = "1"\n[default]\ninput = 0.00000000001\ncached_input = 1\noutput = 1', "is not a price"),
        ('version = "1"\n[default]\ninput = nan\ncached_input = 1\noutput = 1', "is not a price"),
        ("version = 1\n[default]\ninput = 1\ncached_input = 1\noutput = 1", "version must be a text"),
        ("what", "price table"),
    ],
)
def test_a_bad_table_says_what_is_wrong_and_where(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=says) as error:
        load_prices(path)
    assert str(path) in str(error.value)
    with pytest.raises(ValidationError, match=says):
        AuthSettings(prices=path)


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"absent\.toml: No such file"):
        load_prices(tmp_path / "absent.toml")
