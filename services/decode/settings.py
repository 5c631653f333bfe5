"""What the decode worker can be told: `TOKENPATH_DECODE_*`."""

from __future__ import annotations

from services.engine.worker.settings import WorkerSettings
from services.platform.settings import settings_config


class DecodeSettings(WorkerSettings):
    model_config = settings_config("decode")
