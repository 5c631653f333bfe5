"""All choices of one request: what the engine says in, deltas and the final usage out."""

from __future__ import annotations

import grpc
from smg_grpc_proto.generated.vllm_engine_pb2 import GenerateComplete, GenerateResponse, GenerateStreamChunk

from services.detokenizer.choice import Choice, OutputRules
from services.platform.failures import Failure
from services.tokenization.tokenizer import Tokenizer
from tokenpath.v1.common_pb2 import Usage
from tokenpath.v1.detokenizer_pb2 import Delta


class Outputs:
    """Raises Failure (INTERNAL or UNAVAILABLE) when the engine's messages make no sense or it gives up a choice."""

    def __init__(self, tokenizer: Tokenizer, rules: OutputRules, choices: int) -> None:
        self._choices = [Choice(index, tokenizer, rules) for index in range(choices)]
        self._running = choices
        self._prompt_tokens = 0
        self._cached_tokens = 0

    @property
    def finished(self) -> bool:
        """No choice can gain anything any more."""
        return self._running == 0

    @property
    def tokens(self) -> int:
        """Output tokens that count, over all choices."""
        return sum(choice.tokens for choice in self._choices)

    def take(self, message: GenerateResponse) -> tuple[list[Delta], int | None]:
        """The deltas that a message of the engine brings, and the index of the choice that a stop string ended, if
        one did: the engine does not know of it yet."""
        if message.HasField("chunk"):
            return self._chunk(message.chunk)
        return self._complete(message.complete), None

    def usage(self) -> Usage:
        """The prompt counts once, however many choices there are."""
        return Usage(
            prompt_tokens=self._prompt_tokens, completion_tokens=self.tokens, cached_tokens=self._cached_tokens
        )

    def _chunk(self, chunk: GenerateStreamChunk) -> tuple[list[Delta], int | None]:
        choice = self._choice(chunk)
        if choice.finished:  # sent before the engine heard of the stop string
            return [], None
        logprobs = chunk.output_logprobs if chunk.HasField("output_logprobs") else None
        deltas = list(choice.push(chunk.token_ids, logprobs))
        if not choice.finished:
            return deltas, None
        self._running -= 1
        return deltas, chunk.index

    def _complete(self, complete: GenerateComplete) -> list[Delta]:
        choice = self._choice(complete)
        if choice.finished:
            return []
        if complete.finish_reason not in ("stop", "length"):
            raise Failure(
                grpc.StatusCode.UNAVAILABLE,
                "the decode worker gave up this request before it was done; send it again",
                code="service_unavailable",
            )
        deltas: list[Delta] = []
        if not choice.tokens and complete.output_ids:  # an engine that does not stream sends everything here
            logprobs = complete.output_logprobs if complete.HasField("output_logprobs") else None
            deltas += choice.push(complete.output_ids, logprobs)
        if not choice.finished:
            deltas.append(choice.finish(complete.finish_reason, complete.completion_tokens))
        self._running -= 1
        return deltas

    def _choice(self, part: GenerateStreamChunk | GenerateComplete) -> Choice:
        if part.index >= len(self._choices):
            raise Failure(
                grpc.StatusCode.INTERNAL,
                f"the decode worker sent choice {part.index} of {len(self._choices)}; its log may say why",
            )
        if not self._prompt_tokens:
            self._prompt_tokens, self._cached_tokens = part.prompt_tokens, part.cached_tokens
        return self._choices[part.index]
