"""SSE events of a streamed answer, byte for byte. The parts that never change are built once a request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

import orjson

from tokenpath.v1.detokenizer_pb2 import Delta

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"
LogprobsJson = Callable[[int, Delta], bytes]
"""(choice index, delta) -> the JSON of its `logprobs`."""
RunningUsage = Callable[[int], bytes]
"""(tokens counted but not yet sent) -> the JSON of the usage so far."""


class UsageMode(Enum):
    """What `stream_options` asked for."""

    NONE = "none"
    FINAL = "final"
    CONTINUOUS = "continuous"


@dataclass(frozen=True)
class Identity:
    """What all chunks of an answer share. `object_name` as OpenAI has it."""

    id: str
    object_name: str
    created: int
    model: str

    def json_head(self) -> bytes:
        """`{"id":...,"object":...,"created":...,"model":...` without the closing brace."""
        fields = {"id": self.id, "object": self.object_name, "created": self.created, "model": self.model}
        return orjson.dumps(fields)[:-1]


@dataclass(frozen=True)
class Shape:
    """How a choice carries its text: `first` opens a choice's first chunk, `later` the others, `close` ends both."""

    first: bytes
    later: bytes
    close: bytes


CHAT_SHAPE = Shape(b'"delta":{"role":"assistant","content":', b'"delta":{"content":', b"}")
COMPLETION_SHAPE = Shape(b'"text":', b'"text":', b"")


class ChunkEncoder:
    """Deltas -> events. One encoder a request; choice indices are those of the answer (prompt * n + choice)."""

    def __init__(
        self, identity: Identity, shape: Shape, choices: int, usage: UsageMode, logprobs: LogprobsJson | None
    ) -> None:
        head = b"data: " + identity.json_head() + b',"choices":['
        self._opening = [head + b'{"index":%d,' % index + shape.first for index in range(choices)]
        self._later = [head + b'{"index":%d,' % index + shape.later for index in range(choices)]
        self._middle = shape.close + b',"logprobs":'
        self._plain_end = shape.close + b',"logprobs":null,"finish_reason":null}]'
        self._tail = b',"usage":null}\n\n' if usage is UsageMode.FINAL else b"}\n\n"
        self._usage = usage
        self._usage_head = head + b'],"usage":'
        self._logprobs = logprobs

    def encode(self, first_index: int, deltas: Sequence[Delta], running_usage: RunningUsage) -> bytes:
        """One event a delta, in order. `running_usage` is only asked when the client wants it on every chunk."""
        pieces: list[bytes] = []
        continuous = self._usage is UsageMode.CONTINUOUS
        unsent = sum(delta.tokens for delta in deltas) if continuous else 0
        for delta in deltas:
            index = first_index + delta.index
            pieces.append(self._opening[index])
            self._opening[index] = self._later[index]
            pieces.append(orjson.dumps(delta.text))
            finish = delta.finish_reason
            if self._logprobs is None and not finish:
                pieces.append(self._plain_end)
            else:
                logprobs = b"null" if self._logprobs is None else self._logprobs(index, delta)
                pieces += (self._middle, logprobs, b',"finish_reason":', orjson.dumps(finish or None), b"}]")
            if continuous:
                unsent -= delta.tokens
                pieces += (b',"usage":', running_usage(unsent), b"}\n\n")
            else:
                pieces.append(self._tail)
        return b"".join(pieces)

    def ending(self, usage: bytes) -> bytes:
        """The usage chunk, when it was asked for, and [DONE]."""
        return DONE if self._usage is UsageMode.NONE else self._usage_head + usage + b"}\n\n" + DONE
