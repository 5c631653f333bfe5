"""Token counts of a request while it runs, so that a cut answer is billed for what was made."""

from __future__ import annotations

from dataclasses import dataclass, field

from tokenpath.v1.common_pb2 import Usage
from tokenpath.v1.detokenizer_pb2 import StreamResponse


@dataclass
class PromptUsage:
    """Counts of one prompt. Nothing is counted before a worker's slot was granted: until then no work was done."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    finish_reasons: dict[int, str] = field(default_factory=dict)  # of the choices that have ended

    def admitted(self, prompt_tokens: int) -> None:
        """Work on the prompt begins."""
        self.prompt_tokens = prompt_tokens

    def take(self, message: StreamResponse) -> None:
        """Count a message: deltas one by one, then the detokenizer's own sum, which rules."""
        if message.HasField("end"):
            self.completion_tokens = message.end.usage.completion_tokens
            self.cached_tokens = min(message.end.usage.cached_tokens, self.prompt_tokens)
        else:
            for delta in message.deltas:
                self.completion_tokens += delta.tokens
                if delta.finish_reason:
                    self.finish_reasons[delta.index] = delta.finish_reason


def total(parts: list[PromptUsage]) -> Usage:
    """The request's usage: each prompt is counted once, however many choices it has."""
    return Usage(
        prompt_tokens=sum(part.prompt_tokens for part in parts),
        completion_tokens=sum(part.completion_tokens for part in parts),
        cached_tokens=sum(part.cached_tokens for part in parts),
    )
