"""One choice of one request, as the core sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

from services.engine.runner import Sampled, SampleRequest, SequenceSlice
from services.engine.sampling_params import SamplingParams
from services.engine.timing import SequenceClock
from services.kvcache.names import PageName, PageNamer
from services.kvcache.page import Page


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """What to generate: `choices` answers to one prompt."""

    request_id: str
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    choices: tuple[int, ...] = (0,)
    """Their indices, ascending; the first computes the prompt and the others share its full pages."""
    salt: str = ""
    known_ids: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """Output tokens that each choice has already, made by another worker; they are not emitted again."""
    pages: Mapping[PageName, Page] = field(default_factory=dict)
    """Pages of the prompt that were computed elsewhere; what is missing is recomputed."""
    on_page: Callable[[Page], None] | None = None
    """Called on the event loop with each page of the prompt, in order, the partly filled last one included."""


class Sequence:
    """Tokens, blocks and progress of one choice. Owned by the compute thread."""

    __slots__ = (
        "block_ids",
        "cached_tokens",
        "clock",
        "computed",
        "due_at",
        "exported",
        "followers",
        "index",
        "max_output",
        "named",
        "namer",
        "names",
        "output_ids",
        "prompt_ids",
        "request",
        "seed",
        "sequence_id",
        "stop_ids",
        "token_ids",
    )

    def __init__(
        self,
        sequence_id: str,
        request: EngineRequest,
        index: int,
        *,
        namer: PageNamer,
        eos_token_ids: SequenceOf[int],
        max_output: int,
        arrived_ns: int,
    ) -> None:
        self.sequence_id = sequence_id
        self.request = request
        self.index = index
        self.namer = namer
        self.prompt_ids = request.prompt_ids
        self.output_ids: list[int] = list(request.known_ids.get(index, ()))
        self.token_ids: list[int] = [*request.prompt_ids, *self.output_ids]
        self.stop_ids = stop_ids_of(request.sampling, eos_token_ids)
        self.max_output = max_output
        self.seed = (request.sampling.seed, index)
        self.clock = SequenceClock(arrived_ns)
        self.block_ids: list[int] = []
        self.names: list[PageName] = []
        self.computed = 0
        """Positions whose KV lies in the blocks; the rest of `token_ids` is still to be run."""
        self.named = 0
        """Leading blocks that are published in the prefix cache."""
        self.exported = 0
        """Pages of the prompt given to `on_page`."""
        self.cached_tokens = -1
        """Prompt tokens that the prefix cache spared at the first admission; -1 before it."""
        self.due_at = 0.0
        self.followers: list[Sequence] = []
        """Choices of the same prompt that start when this one has computed it."""

    @property
    def remaining(self) -> int:
        """Tokens to run until the next sample; 1 while decoding."""
        return len(self.token_ids) - self.computed

    @property
    def prefilling(self) -> bool:
        return self.remaining > 1 or not self.output_ids

    @property
    def block_size(self) -> int:
        return self.namer.block_size

    def blocks_needed(self) -> int:
        """Blocks that hold every known token."""
        return -(-len(self.token_ids) // self.block_size)

    def update_names(self) -> list[PageName]:
        """Names of all full pages of the known tokens."""
        self.namer.extend(self.names, self.token_ids)
        return self.names

    def slice(self, tokens: int) -> SequenceSlice:
        """The next `tokens` tokens to run, with a request for a sample when they reach the end."""
        end = self.computed + tokens
        sample = None
        if end == len(self.token_ids):
            early = len(self.output_ids) < self.request.sampling.min_tokens
            sample = SampleRequest(
                self.request.sampling,
                self.seed,
                len(self.output_ids),
                self.prompt_ids,
                self.output_ids,
                tuple(self.stop_ids) if early else (),
            )
        return SequenceSlice(
            self.sequence_id, self.token_ids[self.computed : end], self.computed, self.block_ids, sample
        )

    def append(self, sampled: Sampled) -> str:
        """Take a sampled token; returns why the sequence ends with it, or ""."""
        self.output_ids.append(sampled.token_id)
        self.token_ids.append(sampled.token_id)
        return self.finish_reason()

    def finish_reason(self) -> str:
        """Why the output ends with its last token, or ""."""
        return finish_reason(
            self.output_ids[-1], len(self.output_ids), self.request.sampling, self.stop_ids, self.max_output
        )

    def forget_blocks(self) -> list[int]:
        """Give up the KV, to be computed again later; returns the blocks to release."""
        blocks, self.block_ids = self.block_ids, []
        self.computed = self.named = 0
        return blocks


def most_output(request: EngineRequest, max_model_len: int) -> int:
    """Output tokens at most: what was asked for, or what the context leaves."""
    room = max_model_len - len(request.prompt_ids)
    return room if request.sampling.max_tokens is None else min(room, request.sampling.max_tokens)


def stop_ids_of(sampling: SamplingParams, eos_token_ids: SequenceOf[int]) -> frozenset[int]:
    """Tokens that end the output once `min_tokens` are there."""
    return frozenset(sampling.stop_token_ids) | (frozenset() if sampling.ignore_eos else frozenset(eos_token_ids))


def finish_reason(
    token_id: int, produced: int, sampling: SamplingParams, stop_ids: frozenset[int], max_output: int
) -> str:
    """Why an output of `produced` tokens ends with `token_id`: "stop", "length", or "" when it goes on."""
    if token_id in stop_ids and produced > sampling.min_tokens:
        return "stop"
    return "length" if produced >= max_output else ""
