"""What a worker of either role can be told."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from services.platform.settings import ServiceSettings


class WorkerSettings(ServiceSettings):
    """`TOKENPATH_PREFILL_*` and `TOKENPATH_DECODE_*`."""

    engine: Literal["torch", "scripted"] = "torch"
    model: str = Field(default="smollm2", description="smollm2, a model folder, a .gguf file or a hub name")
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    device: str = "cpu"
    threads: int = Field(default=1, ge=1, description="threads that compute a step")
    kv_blocks: int = Field(default=1024, ge=2)
    block_size: int = Field(default=16, ge=1, description="tokens a KV block")
    max_num_seqs: int = Field(default=32, ge=1, description="sequences in the batch")
    max_waiting: int = Field(default=1024, ge=0, description="sequences that may wait for the batch")
    max_model_len: int = Field(default=0, ge=0, description="prompt and output in tokens; 0: as far as the model goes")
    step_tokens: int = Field(default=512, ge=1, description="tokens a step runs, decodes included")
    kv_ttl_s: float = Field(default=60.0, gt=0, description="how long published pages live")
    kv_wait_s: float = Field(default=2.0, gt=0, le=10, description="longest wait for the page store")
    state_url: str = Field(default="", description="Redis with the fleet's leases; empty: join no fleet")
    kv_url: str = Field(default="", description="Redis with the KV pages; empty: hand over no pages")
    worker_id: str = Field(default="", description="stable name in the fleet; default: INSTANCE, or the role and -0")

    @model_validator(mode="after")
    def _steps_hold_a_batch(self) -> WorkerSettings:
        if self.step_tokens < self.max_num_seqs:
            raise ValueError(f"STEP_TOKENS ({self.step_tokens}) must not be below MAX_NUM_SEQS ({self.max_num_seqs})")
        return self

    def name(self, role: str) -> str:
        """The worker's id in the fleet."""
        return self.worker_id or (self.instance if "instance" in self.model_fields_set else f"{role}-0")
