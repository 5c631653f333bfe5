"""Which workers can use each other's KV pages."""

from __future__ import annotations

import json
from hashlib import blake2b

from services.engine.runner import KvLayout, ModelDescription

PROTOCOL_VERSION = 1
"""Raise it when pages, names or the hand-off descriptor change their meaning."""


def kv_fingerprint(
    model: ModelDescription, layout: KvLayout, tokenizer_digest: str, protocol_version: int = PROTOCOL_VERSION
) -> str:
    """32 hex digits, equal exactly when model, weights, dtype, layout, block size, tokenizer and protocol are."""
    parts = [
        model.name,
        model.weights_digest,
        layout.dtype,
        layout.description,
        layout.block_size,
        layout.bytes_per_block,
        tokenizer_digest,
        protocol_version,
    ]
    return blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()
