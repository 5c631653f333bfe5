"""Typed settings from `TOKENPATH_<SERVICE>_<NAME>` environment variables; an unknown name is an error."""

from __future__ import annotations

import os
import socket
from typing import TypeVar

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from services.platform.startup import StartupError


class SettingsError(StartupError):
    """A setting is unknown or has a value that can't be used. The message names the variable."""


def settings_config(service: str) -> SettingsConfigDict:
    """The `model_config` of a service's settings class."""
    return SettingsConfigDict(env_prefix=f"TOKENPATH_{service.upper()}_", extra="forbid", frozen=True)


class ServiceSettings(BaseSettings):
    """What every service can be told."""

    host: str = "127.0.0.1"
    port: int = Field(default=0, ge=0, le=65535, description="gRPC port; 0 takes a free one")
    metrics_port: int = Field(default=0, ge=0, le=65535, description="Prometheus port; 0 serves no metrics")
    instance: str = Field(default_factory=socket.gethostname, description="service.instance.id")
    drain_s: float = Field(default=20.0, ge=0, description="seconds that running calls get after SIGTERM")


S = TypeVar("S", bound=ServiceSettings)


def load_settings(cls: type[S]) -> S:
    """Read `cls` from the environment. Raises SettingsError that names the variable and what is wrong with it."""
    prefix = str(cls.model_config["env_prefix"])
    known = {prefix + name.upper() for name in cls.model_fields}
    unknown = sorted(key for key in os.environ if key.startswith(prefix) and key not in known)
    if unknown:
        raise SettingsError(f"unknown setting {unknown[0]}; known settings are: {', '.join(sorted(known))}")
    try:
        return cls()
    except ValidationError as error:
        first = error.errors()[0]
        name = prefix + "_".join(str(part) for part in first["loc"]).upper()
        raise SettingsError(f"setting {name}: {first['msg']}") from None
