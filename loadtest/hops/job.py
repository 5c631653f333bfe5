"""What the load process is asked to do, and what it answers: JSON over its stdin and stdout."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Job:
    """`clients` connections, each sending its share of `bodies` one after the other."""

    host: str
    port: int
    path: str
    headers: dict[str, str]
    bodies: list[str]  # JSON request bodies
    clients: int
    timeout_s: float = 120.0

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Job:
        return Job(**json.loads(text))


@dataclass(frozen=True)
class Sample:
    """One streamed answer. `arrivals` are (monotonic ns, texts that came with this read), oldest first."""

    answer_id: str  # `id` of the body
    sent_ns: int
    ended_ns: int
    arrivals: list[tuple[int, int]]
    completion_tokens: int

    @property
    def ttft_ms(self) -> float:
        return (self.arrivals[0][0] - self.sent_ns) / 1e6

    @property
    def texts(self) -> int:
        return sum(count for _, count in self.arrivals)


@dataclass(frozen=True)
class Result:
    samples: list[Sample]
    cpu_s: float  # of the load process, while it ran the job

    @property
    def tokens(self) -> int:
        return sum(sample.completion_tokens for sample in self.samples)

    @property
    def wall_s(self) -> float:
        """First request sent -> last answer ended."""
        started = min(sample.sent_ns for sample in self.samples)
        return (max(sample.ended_ns for sample in self.samples) - started) / 1e9

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Result:
        row = json.loads(text)
        samples = [
            Sample(**{**sample, "arrivals": [tuple(arrival) for arrival in sample["arrivals"]]})
            for sample in row["samples"]
        ]
        return Result(samples, row["cpu_s"])
