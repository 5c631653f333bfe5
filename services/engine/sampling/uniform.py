"""The random numbers of one output token, from a counter instead of a state.

Philox keyed by (request seed, choice) with the token's position as the counter: whoever samples position p gets the
same numbers, on the prefill worker or the decode worker, first time or after a retry, in whatever batch.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_WORD = (1 << 64) - 1
_STEP = np.float32(2.0**-32 * (1 - 2.0**-23))
"""Keeps the largest number, rounded to float32, below 1."""


def uniforms(seed: tuple[int, int], position: int, count: int) -> npt.NDArray[np.float32]:
    """`count` numbers between 0 and 1, neither included, for output position `position` of the choice `seed` =
    (request seed, choice index). More numbers begin with the same ones.
    """
    key = np.array([seed[0] & _WORD, seed[1] & _WORD], dtype=np.uint64)
    counter = np.array([0, position, 0, 0], dtype=np.uint64)  # word 0 is what the generator itself counts up
    words = np.random.Philox(key=key, counter=counter).random_raw(-(-count // 2)).astype("<u8", copy=False)
    numbers: npt.NDArray[np.float32] = (words.view("<u4")[:count].astype(np.float32) + np.float32(0.5)) * _STEP
    return numbers
