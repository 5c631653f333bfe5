"""Settings of the detokenizer: TOKENPATH_DETOKENIZER_<NAME>."""

from __future__ import annotations

from pydantic import Field

from services.platform.settings import ServiceSettings, settings_config


class DetokenizerSettings(ServiceSettings):
    model_config = settings_config("detokenizer")

    model: str = Field(default="smollm2", description="smollm2, a model folder, a .gguf file or a hub name")
    longest_stream_s: float = Field(default=600.0, gt=0, description="limit for a call without a deadline")
    report_wait_s: float = Field(
        default=1.0, ge=0, description="wait for decode's stage reports after the last text was sent"
    )
