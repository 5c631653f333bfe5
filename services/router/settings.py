"""What the router can be told: TOKENPATH_ROUTER_<NAME>."""

from __future__ import annotations

from pydantic import Field, field_validator

from services.platform.settings import ServiceSettings, settings_config
from services.router.decision import Mode
from services.router.policies.registry import PolicyOptions, make_policy


class RouterSettings(ServiceSettings):
    model_config = settings_config("router")

    state_url: str = Field(default="redis://127.0.0.1:6379/0", description="Redis that holds the fleet's leases")
    mode: Mode = Field(default=Mode.DISAGGREGATED, description="for requests that don't say one")
    policy: str = Field(default="prefix_minus_load", description="how workers are ranked")
    load_weight: float = Field(default=2.0, ge=0, description="what a full worker costs, in shares of a cached prompt")
    max_candidates: int = Field(default=8, ge=1, le=64)
    index_blocks: int = Field(default=1_000_000, ge=1, description="KV pages the index remembers, about 200 bytes each")
    max_hashed_blocks: int = Field(default=8192, ge=0, description="pages of a prompt that are looked up")
    booking_ttl_s: float = Field(default=5.0, ge=0, description="how long work sent to a worker counts unseen")
    fleet_poll_s: float = Field(default=0.5, gt=0)

    @field_validator("policy")
    @classmethod
    def _known(cls, name: str) -> str:
        make_policy(name, PolicyOptions(load_weight=1.0))
        return name
