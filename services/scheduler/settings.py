"""What the scheduler can be told: TOKENPATH_SCHEDULER_<NAME>."""

from __future__ import annotations

from pydantic import Field

from services.platform.settings import ServiceSettings, settings_config


class SchedulerSettings(ServiceSettings):
    model_config = settings_config("scheduler")

    state_url: str = Field(default="redis://127.0.0.1:6379/0", description="Redis that holds the fleet's leases")
    queue_limit: int = Field(default=256, ge=0, description="requests that may wait; one more is refused at once")
    position_every_s: float = Field(default=0.25, gt=0, description="a waiting caller is told its position that often")
    lost_grace_s: float = Field(default=2.0, ge=0, description="how long all workers of a request may be gone")
    fleet_poll_s: float = Field(default=0.5, gt=0)
