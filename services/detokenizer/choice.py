"""One choice of a request: token ids in, deltas out."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from smg_grpc_proto.generated.vllm_engine_pb2 import OutputLogProbs

from services.detokenizer.incremental_text import IncrementalText
from services.detokenizer.stop_strings import StopMatcher, StopStrings
from services.tokenization.tokenizer import Tokenizer
from tokenpath.v1.detokenizer_pb2 import Delta, TokenLogprob


@dataclass(frozen=True, slots=True)
class OutputRules:
    """What the request wants of its text; the same for all its choices."""

    prompt_tail: bytes = b""
    stop_strings: StopStrings | None = None
    keep_special_tokens: bool = False
    silent_ids: Collection[int] = frozenset()
    """Tokens that end the output and so have no text of their own: EOS and the request's stop tokens."""


class Choice:
    """The state of one choice. `tokens` counts all that were taken in, silent ones too."""

    __slots__ = ("_index", "_logprobs", "_matcher", "_pending", "_rules", "_text", "_tokenizer", "finished", "tokens")

    def __init__(self, index: int, tokenizer: Tokenizer, rules: OutputRules) -> None:
        self._index = index
        self._tokenizer = tokenizer
        self._rules = rules
        self._text = IncrementalText(rules.prompt_tail)
        self._matcher = StopMatcher(rules.stop_strings) if rules.stop_strings else None
        self._pending = 0  # tokens taken in that no delta has covered yet
        self._logprobs: list[TokenLogprob] = []  # theirs
        self.tokens = 0
        self.finished = False

    def push(self, token_ids: Sequence[int], logprobs: OutputLogProbs | None) -> Iterator[Delta]:
        """The deltas that these tokens complete. A stop string finishes the choice; tokens after it are not taken in.

        A token without text (EOS, special tokens) has no logprob in the deltas either: the bytes of the logprobs
        joined are the text, up to a stop string.
        """
        silent_ids, keep_special, tokenizer = self._rules.silent_ids, self._rules.keep_special_tokens, self._tokenizer
        for position, token_id in enumerate(token_ids):
            self.tokens += 1
            self._pending += 1
            if token_id in silent_ids or (tokenizer.is_special(token_id) and not keep_special):
                continue
            if logprobs is not None:
                self._logprobs.append(_logprob(tokenizer, logprobs, position))
            text = self._text.push(tokenizer.token_bytes(token_id))
            if self._matcher is not None:
                text = self._matcher.push(text)
                if self._matcher.stopped:
                    self.finished = True
                    yield self._delta(text, "stop")
                    return
            if text:
                yield self._delta(text)

    def finish(self, reason: str, tokens: int) -> Delta:
        """The engine ended the choice after `tokens` tokens: the last delta, with everything that was held back.

        Held bytes can complete a stop string only as U+FFFD, and then they do.
        """
        if tokens > self.tokens:  # an engine need not stream the stop token, but it counts
            self._pending += tokens - self.tokens
            self.tokens = tokens
        text = self._text.finish()
        if self._matcher is not None:
            text = self._matcher.push(text)
            if self._matcher.stopped:
                reason = "stop"
            text += self._matcher.finish()
        self.finished = True
        return self._delta(text, reason)

    def _delta(self, text: str, finish_reason: str = "") -> Delta:
        delta = Delta(
            index=self._index, text=text, tokens=self._pending, finish_reason=finish_reason, logprobs=self._logprobs
        )
        self._pending = 0
        if self._logprobs:
            self._logprobs = []
        return delta


def _logprob(tokenizer: Tokenizer, logprobs: OutputLogProbs, position: int) -> TokenLogprob:
    token_id = logprobs.token_ids[position]
    alternatives = logprobs.top_logprobs[position] if position < len(logprobs.top_logprobs) else None
    return TokenLogprob(
        token_id=token_id,
        token=tokenizer.token_bytes(token_id),
        logprob=logprobs.token_logprobs[position],
        top=[
            TokenLogprob(token_id=each, token=tokenizer.token_bytes(each), logprob=value)
            for each, value in zip(alternatives.token_ids, alternatives.values, strict=True)
        ]
        if alternatives is not None
        else (),
    )
