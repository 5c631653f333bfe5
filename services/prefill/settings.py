"""What the prefill worker can be told: `TOKENPATH_PREFILL_*`."""

from __future__ import annotations

from services.engine.worker.settings import WorkerSettings
from services.platform.settings import settings_config


class PrefillSettings(WorkerSettings):
    model_config = settings_config("prefill")
