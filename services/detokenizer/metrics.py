"""What the detokenizer counts."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge


class DetokenizerMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.active = Gauge("tokenpath_detokenizer_active_streams", "Streams that are open now.", registry=registry)
        self.streams = Counter(
            "tokenpath_detokenizer_streams", "Streams by how they ended.", ["status"], registry=registry
        )
        self.tokens = Counter("tokenpath_detokenizer_tokens", "Tokens turned into text.", registry=registry)
        self.stop_strings = Counter(
            "tokenpath_detokenizer_stop_strings", "Choices that a stop string ended.", registry=registry
        )
        self.failed_aborts = Counter(
            "tokenpath_detokenizer_failed_aborts",
            "Stopped choices that the decode worker could not be told of; it computed on in vain.",
            registry=registry,
        )
        self.missing_reports = Counter(
            "tokenpath_detokenizer_missing_reports",
            "Streams whose decode worker did not report its stages in time.",
            registry=registry,
        )
