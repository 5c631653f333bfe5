"""What all endpoints share: made once by app.py, handed to each."""

from __future__ import annotations

from dataclasses import dataclass

from services.gateway.clients.auth import AuthClient
from services.gateway.fleet_view import FleetView
from services.gateway.journey.store import JourneyStore
from services.gateway.leash import Leashes
from services.gateway.ledger_outbox import LedgerOutbox
from services.gateway.metrics import GatewayMetrics
from services.gateway.pipeline import Pipeline
from services.gateway.settings import GatewaySettings
from services.platform.telemetry import Telemetry
from services.tokenization.tokenizer import Tokenizer


@dataclass(frozen=True)
class Gateway:
    """`started_unix` is when the served model became available, in seconds."""

    settings: GatewaySettings
    telemetry: Telemetry
    metrics: GatewayMetrics
    tokenizer: Tokenizer
    auth: AuthClient
    pipeline: Pipeline
    outbox: LedgerOutbox
    fleet: FleetView
    journeys: JourneyStore
    leashes: Leashes
    started_unix: int

    @property
    def model(self) -> str:
        """The one model that is served, as clients call it."""
        return self.tokenizer.name
