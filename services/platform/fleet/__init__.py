"""Fleet membership by leases in the state Redis: workers publish one, routers and schedulers watch them."""

from services.platform.fleet.per_worker import PerWorker, StreamUnusable, follow
from services.platform.fleet.publisher import FleetPublisher
from services.platform.fleet.record import INDEX_KEY, WorkerRecord, lease_key
from services.platform.fleet.step_feed import StepFeed
from services.platform.fleet.watcher import ChangeKind, FleetChange, FleetWatcher

__all__ = [
    "INDEX_KEY",
    "ChangeKind",
    "FleetChange",
    "FleetPublisher",
    "FleetWatcher",
    "PerWorker",
    "StepFeed",
    "StreamUnusable",
    "WorkerRecord",
    "follow",
    "lease_key",
]
