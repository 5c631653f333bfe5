"""A small, varied, seeded set of chats.

All share one system prompt, as real applications do, so that prefix caching has something to find; about one in
four asks the same question as an earlier one; the lengths vary by an order of magnitude.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

Message = dict[str, str]

SYSTEM = (
    "You are the help desk of a public library. Answer in plain words, in at most three short paragraphs. "
    "The library opens at nine and closes at eight on weekdays, and at five on Saturdays; it is closed on Sundays. "
    "A reader may borrow ten books for four weeks, and renew each twice unless someone else has asked for it. "
    "Films and games may be borrowed for one week. The reading room on the second floor is quiet; the workshop in "
    "the basement has printers, scanners and a sewing machine, which anyone may use after a short introduction. "
    "If a question has nothing to do with the library, answer it as well as you can and say where to read more."
)
QUESTIONS = (
    "When do you close on Saturday?",
    "What is the capital of France?",
    "How many books may I borrow, and for how long?",
    "Can I renew a book that someone else has asked for?",
    "Explain to a ten-year-old why the sky is blue.",
    "Suggest three novels about the sea, and say in one sentence each why.",
    "I would like to learn to sew. What do I have to do before I may use your machine?",
    "Write a short poem about a reader who lost her bookmark.",
    "What is the difference between a virus and a bacterium?",
    "List the primary colours, and two things that have each of them.",
)
CONTEXT = (
    "Here is what I have read so far: a history of navigation that begins with the first charts drawn on skin, goes "
    "on to the clocks that made longitude possible, and ends with satellites; a novel about a lighthouse keeper who "
    "writes letters that nobody fetches; and a handbook of knots that I used more than I expected to."
)


class PromptMix:
    """An endless sequence of chats; the same seed gives the same sequence."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def __iter__(self) -> Iterator[list[Message]]:
        return self

    def __next__(self) -> list[Message]:
        question = self._random.choice(QUESTIONS)
        context = " ".join([CONTEXT] * self._random.choice((0, 0, 1, 3)))
        if self._random.random() < 0.75:
            question += f" My card number is {self._random.randrange(10_000, 100_000)}."
        return [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": f"{context} {question}".strip()},
        ]


class FixedPrompts:
    """The user's own prompts, one after the other, for ever."""

    def __init__(self, prompts: tuple[str, ...], first: int) -> None:
        self._prompts = prompts
        self._next = first

    def __iter__(self) -> Iterator[list[Message]]:
        return self

    def __next__(self) -> list[Message]:
        prompt = self._prompts[self._next % len(self._prompts)]
        self._next += 1
        return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": prompt}]
