"""Weighted fair queueing over tenants and priorities.

Every tenant has a clock that advances by the service it received, divided by its weight. Tenants that are behind go first, and
one that is far ahead waits until the others have caught up (start-time fair queueing: Goyal, Vin, Cheng, SIGCOMM 1996). Inside
a tenant each priority has a clock of the same kind, so that a priority takes from the tenant's own work only. Service is
measured in *token times*: a step costs ``fixed`` of them, shared by its participants, and one for each token. So where one more
row in the batch costs next to nothing (a large accelerator), all run in every step; where it costs as much as a step of its own
(a CPU), a lone stream gets steps of its own while a tenant with fifty waits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", str, int)


@dataclass(frozen=True, slots=True)
class StepCost:
    """``fixed``: the cost of a step beside its tokens, in token times. ``lead``: how far a clock may be ahead of the others."""

    fixed: float = 8.0

    @property
    def lead(self) -> float:
        """Token times by which a clock may be ahead and still take part: two steps of one row."""
        return 2 * (self.fixed + 1)


class FairClock(Generic[K]):
    """One clock per key. A key that comes back starts no earlier than the one furthest behind, so that none saves up turns."""

    def __init__(self, weight: Callable[[K], float], cost: StepCost) -> None:
        self._weight: Callable[[K], float] = weight
        self._cost = cost
        self._clocks: dict[K, float] = {}
        self._running: set[K] = set()

    def next_round(self, keys: Collection[K]) -> list[K]:
        """Start the clocks of new keys, and return those of ``keys`` (at least one) that may take part, furthest behind first."""
        clocks = self._clocks
        running = [clocks[key] for key in keys if key in self._running]
        start = min(running) if running else max(clocks.get(key, 0.0) for key in keys)
        for key in keys:
            if key not in self._running:
                clocks[key] = max(clocks.get(key, 0.0), start)
        self._running = set(keys)
        if len(keys) == 1:
            return list(keys)
        behind = min(clocks[key] for key in keys)
        fair = [key for key in keys if (clocks[key] - behind) * self._weight(key) <= self._cost.lead]
        return sorted(fair, key=lambda key: (clocks[key], key))

    def charge(self, served: Mapping[K, int]) -> None:
        """Advance the clocks by the tokens that each key fed in one step."""
        fixed = self._cost.fixed / len(served)
        for key, tokens in served.items():
            self._clocks[key] += (tokens + fixed) / self._weight(key)


def priority_weight(priority: int) -> float:
    """Return the weight of a priority, which doubles with each step up."""
    return 2.0**priority
