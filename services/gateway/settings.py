"""What the gateway can be told: TOKENPATH_GATEWAY_<NAME>."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from services.platform.limits import MAX_MESSAGE_BYTES
from services.platform.settings import ServiceSettings, settings_config


class GatewaySettings(ServiceSettings):
    """PORT is the gRPC port (health, reflection); HTTP_PORT is the API's."""

    model_config = settings_config("gateway")

    http_port: int = Field(default=8000, ge=0, le=65535, description="port of the OpenAI-compatible API; 0: a free one")
    model: str = Field(default="smollm2", description="whose tokenizer and chat template to use")
    auth_address: str = Field(default="127.0.0.1:7101", description="host:port of the auth service")
    router_address: str = Field(default="127.0.0.1:7102", description="host:port of the router")
    scheduler_address: str = Field(default="127.0.0.1:7103", description="host:port of the scheduler")
    detokenizer_address: str = Field(default="127.0.0.1:7104", description="host:port of the detokenizer")
    mode: Literal["", "disaggregated", "aggregated"] = Field(
        default="", description="ask the router for this mode; empty leaves it to the router"
    )
    request_timeout_s: float = Field(default=600, gt=0, description="deadline when the client sets none")
    control_timeout_s: float = Field(default=2, gt=0, description="cap of one auth or router call")
    prefill_timeout_s: float = Field(
        default=60, gt=0, description="a prefill worker that takes longer counts as silent; decode computes the prompt"
    )
    settle_wait_s: float = Field(default=1, gt=0, description="how long an answer waits for its ledger row")
    outbox_rows: int = Field(default=10_000, ge=1, description="ledger rows that may wait for auth to come back")
    max_body_bytes: int = Field(
        default=32 * 1024 * 1024,
        ge=1024,
        le=MAX_MESSAGE_BYTES // 2,  # what fits into the gateway must fit through every hop behind it
        description="largest request body (413 above)",
    )
    ping_s: float = Field(default=15, gt=0, description="silence after which a stream gets an SSE comment")
    journeys: int = Field(default=1000, ge=1, description="finished requests whose journey is kept")
    fleet_poll_s: float = Field(default=1, gt=0, description="how often the router is asked what the fleet can do")
