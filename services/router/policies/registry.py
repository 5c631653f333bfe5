"""The policies by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from services.router.policies.base import Policy
from services.router.policies.prefix_minus_load import PrefixMinusLoad
from services.router.policies.round_robin import RoundRobin


@dataclass(frozen=True, slots=True)
class PolicyOptions:
    """What policies can be told; each takes what it needs."""

    load_weight: float


POLICIES: Mapping[str, Callable[[PolicyOptions], Policy]] = {
    RoundRobin.name: lambda options: RoundRobin(),
    PrefixMinusLoad.name: lambda options: PrefixMinusLoad(options.load_weight),
}


def make_policy(name: str, options: PolicyOptions) -> Policy:
    """A new policy object. ValueError: no such policy; lists the choices."""
    if name not in POLICIES:
        raise ValueError(f"no routing policy is called {name!r}; choose one of: {', '.join(sorted(POLICIES))}")
    return POLICIES[name](options)
