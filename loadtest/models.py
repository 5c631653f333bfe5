"""What a gateway serves, as it says itself."""

from __future__ import annotations

import json
import urllib.request
from functools import cache

ANSWER_S = 10.0


@cache
def served_model(base_url: str, api_key: str) -> str:
    """The first model of GET /v1/models. Raises OSError when the gateway doesn't answer, ValueError without a model."""
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    request = urllib.request.Request(f"{base_url.rstrip('/')}/v1/models", headers=headers)
    with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
        models = json.load(answer)["data"]
    if not models:
        raise ValueError(f"{base_url} serves no model now: is a worker running?")
    return str(models[0]["id"])
