"""Settings: typed, and an unknown name is an error that names it."""

import pytest

from services.platform.settings import ServiceSettings, SettingsError, load_settings, settings_config


class ExampleSettings(ServiceSettings):
    model_config = settings_config("example")
    queue_limit: int = 5


def test_reads_a_typed_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENPATH_EXAMPLE_QUEUE_LIMIT", "7")
    monkeypatch.setenv("TOKENPATH_EXAMPLE_DRAIN_S", "1.5")
    settings = load_settings(ExampleSettings)
    assert (settings.queue_limit, settings.drain_s) == (7, 1.5)


def test_an_unknown_name_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENPATH_EXAMPLE_QUEUE_LIMT", "7")
    with pytest.raises(SettingsError, match=r"TOKENPATH_EXAMPLE_QUEUE_LIMT.*TOKENPATH_EXAMPLE_QUEUE_LIMIT"):
        load_settings(ExampleSettings)


@pytest.mark.parametrize(("name", "value"), [("QUEUE_LIMIT", "many"), ("PORT", "70000"), ("DRAIN_S", "-1")])
def test_a_bad_value_names_the_variable(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(f"TOKENPATH_EXAMPLE_{name}", value)
    with pytest.raises(SettingsError, match=f"TOKENPATH_EXAMPLE_{name}"):
        load_settings(ExampleSettings)
