"""What discovery knows of one life of one worker."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import Any

from tokenpath.v1 import common_pb2

INDEX_KEY = (
    "tp:fleet"  # sorted set of lease keys, score = when the lease ends: finding workers needs no SCAN of the store
)


def lease_key(role: str, worker_id: str) -> str:
    return f"tp:fleet:{role}:{worker_id}"


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """Mirrors `tokenpath.v1.WorkerInfo`; units as there."""

    worker_id: str  # stable name, e.g. "decode-0"
    generation: str  # new for each life of the process
    role: str  # "prefill" or "decode"
    address: str  # host:port of its gRPC server
    model: str = ""
    fingerprint: str = ""  # only workers with equal fingerprints can read each other's KV pages
    block_size: int = 0  # tokens a KV block
    kv_blocks: int = 0
    max_num_seqs: int = 0
    max_model_len: int = 0  # tokens

    @property
    def lease_key(self) -> str:
        return lease_key(self.role, self.worker_id)

    def to_proto(self) -> common_pb2.WorkerInfo:
        return common_pb2.WorkerInfo(**asdict(self))

    @classmethod
    def from_proto(cls, info: common_pb2.WorkerInfo) -> WorkerRecord:
        return cls(**{field.name: getattr(info, field.name) for field in fields(cls)})

    def to_json(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> WorkerRecord:
        """Reads a lease; keys of a newer version are ignored. ValueError: not a worker's lease."""
        try:
            data: dict[str, Any] = json.loads(text)
            kept: dict[str, Any] = {}
            for field in fields(cls):
                wanted = int if field.type == "int" else str
                value = data.get(field.name, wanted())
                if not isinstance(value, wanted):
                    raise ValueError(f"{field.name} is not {wanted.__name__}")
                kept[field.name] = value
            record = cls(**kept)
        except (AttributeError, TypeError, ValueError) as error:
            raise ValueError(f"not a worker's lease: {error}") from error
        if not (record.worker_id and record.generation and record.role and record.address):
            raise ValueError("not a worker's lease: worker_id, generation, role and address are needed")
        return record
