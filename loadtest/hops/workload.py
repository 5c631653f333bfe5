"""The requests of the bench: prompts that tell the scripted engine what to emit and when."""

from __future__ import annotations

import json
from dataclasses import dataclass

PIECE = " the"  # one token of the default model's vocabulary
WORDS = 12  # of the prompt, which makes about 128 tokens with the chat template and the script


@dataclass(frozen=True)
class Script:
    """`tokens` tokens: the first after `ttft_ms`, then one every `itl_ms`."""

    tokens: int
    ttft_ms: float = 0.0
    itl_ms: float = 0.0


def bodies(script: Script, model: str, count: int, first: int) -> list[str]:
    """`count` request bodies, all different from their first words on, so that no prefix cache helps."""
    return [_body(script, model, first + number) for number in range(count)]


def _body(script: Script, model: str, number: int) -> str:
    order = {"pieces": [PIECE], "repeat": script.tokens, "ttft_ms": script.ttft_ms, "itl_ms": script.itl_ms}
    filler = " ".join(f"word{(number * 31 + place) % 997}" for place in range(WORDS))
    return json.dumps(
        {
            "model": model,
            "messages": [{"role": "user", "content": f"{number}: {filler}\nSCRIPT:{json.dumps(order)}"}],
            "max_tokens": script.tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    )
