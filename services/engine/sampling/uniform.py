"""The random number of one output token, from a counter instead of a state.

Philox keyed by (request seed, choice) with the token's position as the counter: whoever samples position p gets the
same number, on the prefill worker or the decode worker, first time or after a retry, in whatever batch.
"""

from __future__ import annotations

import numpy as np

_WORD = (1 << 64) - 1
_MANTISSA_BITS = 53


def uniform(seed: tuple[int, int], position: int) -> float:
    """A number in [0, 1) for output position `position` of the choice `seed` = (request seed, choice index)."""
    key = np.array([seed[0] & _WORD, seed[1] & _WORD], dtype=np.uint64)
    counter = np.array([0, position, 0, 0], dtype=np.uint64)  # word 0 is what the generator itself counts up
    word = int(np.random.Philox(key=key, counter=counter).random_raw())
    return float(word >> (64 - _MANTISSA_BITS)) * 2.0**-_MANTISSA_BITS
