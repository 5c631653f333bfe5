"""When a rejected caller should come back."""

from __future__ import annotations

from collections import deque

_SHORTEST_MS = 100
_LONGEST_MS = 30_000
_UNKNOWN_MS = 1_000
_GRANTS = 64  # the rate is that of the last so many grants


class RetryAdvice:
    """Time until the line in front would have moved through, at the rate of the latest grants. Seconds of a
    monotonic clock."""

    def __init__(self) -> None:
        self._grants: deque[float] = deque(maxlen=_GRANTS)

    def granted(self, now: float) -> None:
        self._grants.append(now)

    def retry_after_ms(self, now: float, ahead: int) -> int:
        """`ahead`: how many wait. Between 100 ms and 30 s; 1 s while too little is known."""
        if len(self._grants) < 2:
            return _UNKNOWN_MS
        per_grant_s = (now - self._grants[0]) / len(self._grants)
        return int(min(max(1000 * per_grant_s * (ahead + 1), _SHORTEST_MS), _LONGEST_MS))
