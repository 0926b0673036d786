"""Whose turn it is: weighted fair queueing over tenants and priorities.

Every tenant has a clock that runs by what it was served, divided by its weight; whoever is behind goes first, and who is far
ahead waits until the others have caught up (start-time fair queueing: Goyal, Vin, Cheng, SIGCOMM 1996). Inside a tenant each
priority has a clock of the same kind, so that a priority takes from the tenant's own work only. Served is measured in *token
times*: a step costs ``fixed`` of them for taking place at all, shared by those in it, and one for each token. So where one
more row in the batch costs next to nothing (a large accelerator), everybody runs in every step; where it costs as much as a
step of its own (a CPU), a lone stream gets steps of its own while a tenant with fifty waits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", str, int)


@dataclass(frozen=True, slots=True)
class StepCost:
    """``fixed``: what a step costs beside its tokens, in units of one more token. ``lead``: how far one may run ahead."""

    fixed: float = 8.0

    @property
    def lead(self) -> float:
        """Token times by which one may be ahead and still take part: two steps of one row."""
        return 2 * (self.fixed + 1)


class FairClock(Generic[K]):
    """One clock for each key that is served. Who was away starts no earlier than whoever is furthest behind: nobody saves up."""

    def __init__(self, weight: Callable[[K], float], cost: StepCost) -> None:
        self._weight: Callable[[K], float] = weight
        self._cost = cost
        self._clocks: dict[K, float] = {}
        self._running: set[K] = set()

    def eligible(self, keys: Collection[K]) -> list[K]:
        """Those that may take part in the next step, whoever is furthest behind first. ``keys``, at least one, want to."""
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
        """Let the clocks run by the tokens that each key fed in one step."""
        fixed = self._cost.fixed / len(served)
        for key, tokens in served.items():
            self._clocks[key] += (tokens + fixed) / self._weight(key)


def priority_weight(priority: int) -> float:
    """Each step up is worth twice as much."""
    return 2.0**priority
