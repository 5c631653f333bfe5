"""The journeys of the last requests, each readable by its own tenant only."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

MakeJourney = Callable[[], dict[str, Any]]

_BODY_PREFIXES = ("chatcmpl-", "cmpl-")


class JourneyStore:
    """Bounded: the oldest journey leaves first."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._journeys: OrderedDict[str, tuple[str, MakeJourney]] = OrderedDict()

    def put(self, tenant: str, request_id: str, journey: MakeJourney) -> None:
        """Keep a finished request's journey; `journey` is called each time that someone wants to see it."""
        self._journeys[request_id] = (tenant, journey)
        if len(self._journeys) > self._capacity:
            self._journeys.popitem(last=False)

    def get(self, tenant: str, name: str) -> dict[str, Any] | None:
        """By request id or by the `id` of the answer's body; None when unknown or another tenant's."""
        for prefix in _BODY_PREFIXES:
            name = name.removeprefix(prefix)
        owner, journey = self._journeys.get(name, ("", None))
        return journey() if journey is not None and owner == tenant else None
