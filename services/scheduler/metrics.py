"""The scheduler's metrics."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric

from services.platform.fleet import WorkerRecord
from services.scheduler.admission import Admission
from tokenpath.v1.worker_pb2 import LoadState


class SchedulerMetrics:
    def __init__(self, admission: Admission, registry: CollectorRegistry) -> None:
        length = Gauge("tokenpath_scheduler_queue_length", "Requests that wait for a slot", registry=registry)
        length.set_function(lambda: float(len(admission.queue)))
        used = Gauge("tokenpath_scheduler_slots_used", "Slots that are granted", registry=registry)
        used.set_function(lambda: float(admission.slots.used))
        total = Gauge("tokenpath_scheduler_slots_total", "Slots of all living decode workers", registry=registry)
        total.set_function(lambda: float(admission.slots.total))
        self.admitted = Counter("tokenpath_scheduler_admitted_total", "Requests that got a slot", registry=registry)
        self.rejected = Counter(
            "tokenpath_scheduler_rejected_total", "Requests refused, by reason", ["reason"], registry=registry
        )
        self.left = Counter("tokenpath_scheduler_left_total", "Callers that left while they waited", registry=registry)
        self.wait_seconds = Histogram(
            "tokenpath_scheduler_wait_seconds",
            "Time from asking to the slot",
            buckets=(0.001, 0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
            registry=registry,
        )
        self.loads = WorkerLoads()
        registry.register(self.loads)


class WorkerLoads:
    """Collector of what every worker reported last; workers that are gone or don't answer are absent."""

    def __init__(self) -> None:
        self._loads: dict[str, LoadState] = {}

    def report(self, worker: WorkerRecord, load: LoadState) -> None:
        self._loads[worker.worker_id] = load

    def forget(self, worker: WorkerRecord) -> None:
        self._loads.pop(worker.worker_id, None)

    def collect(self) -> list[Metric]:
        families: list[Metric] = []
        for field in LoadState.DESCRIPTOR.fields:
            name = f"tokenpath_scheduler_worker_{field.name}"
            family = GaugeMetricFamily(name, "As the worker reported after its last step", labels=["worker"])
            for worker_id, load in self._loads.items():
                family.add_metric([worker_id], getattr(load, field.name))
            families.append(family)
        return families
