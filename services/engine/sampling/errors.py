"""Why one sequence cannot be given a token; the others of its batch go on."""

from __future__ import annotations


class SamplingError(ValueError):
    """The message names the reason and holds no token of the prompt or the answer."""
