"""Whose turn it is: weighted fair queueing over tenants and priorities.

Every flow (one tenant's jobs of one priority) has a clock that runs by what it was served, divided by its weight; whoever
is behind goes first, and who is far ahead waits until the others have caught up (start-time fair queueing: Goyal, Vin,
Cheng, SIGCOMM 1996). Served is measured in *token times*: a step costs ``fixed`` of them for taking place at all, shared by
the flows in it, and one for each token. So where one more row in the batch costs next to nothing (a large accelerator),
everybody runs in every step; where it costs as much as a step of its own (a CPU), a lone stream gets steps of its own while
a tenant with fifty waits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

J = TypeVar("J")
MAX_PRIORITY = 3


class FlowKey(NamedTuple):
    """Jobs that queue together."""

    tenant: str
    priority: int


@dataclass(frozen=True, slots=True)
class StepCost:
    """``fixed``: what a step costs beside its tokens, in units of one more token. ``lead``: how far a flow may run ahead."""

    fixed: float = 8.0

    @property
    def lead(self) -> float:
        """Token times by which a flow may be ahead and still take part: two steps of one row."""
        return 2 * (self.fixed + 1)


@dataclass(slots=True)
class Flow(Generic[J]):
    """The jobs of one key. ``clock`` in weighted token times."""

    key: FlowKey
    jobs: list[J] = field(default_factory=list)
    clock: float = 0.0
    turn: int = 0

    def in_turn(self) -> list[J]:
        """The jobs, beginning one place further each time, so that nobody starves where not all fit."""
        if len(self.jobs) < 2:
            return self.jobs
        self.turn = (self.turn + 1) % len(self.jobs)
        return self.jobs[self.turn :] + self.jobs[: self.turn]


class FairClock(Generic[J]):
    """The flows' clocks. A flow that was away starts no earlier than whoever is furthest behind: it saves up nothing."""

    def __init__(self, weight: Callable[[str], float], cost: StepCost) -> None:
        self._weight = weight
        self._cost = cost
        self._running: set[FlowKey] = set()

    def eligible(self, flows: Sequence[Flow[J]]) -> list[Flow[J]]:
        """Those that may take part in the next step, whoever is furthest behind first. ``flows`` want to."""
        running = [flow.clock for flow in flows if flow.key in self._running]
        start = min(running) if running else max(flow.clock for flow in flows)
        for flow in flows:
            if flow.key not in self._running:
                flow.clock = max(flow.clock, start)
        self._running = {flow.key for flow in flows}
        if len(flows) == 1:
            return list(flows)
        weights = self._weights(flows)
        behind = min(flow.clock for flow in flows)
        fair = [flow for flow in flows if (flow.clock - behind) * weights[flow.key] <= self._cost.lead]
        return sorted(fair, key=lambda flow: (flow.clock, flow.key))

    def charge(self, flows: Sequence[Flow[J]], served: Mapping[FlowKey, int]) -> None:
        """Let the clocks run by the tokens that each flow fed. ``flows`` are all that wanted to take part."""
        if len(flows) == 1:
            return
        weights = self._weights(flows)
        fixed = self._cost.fixed / len(served)
        for flow in flows:
            if flow.key in served:
                flow.clock += (served[flow.key] + fixed) / weights[flow.key]

    def _weights(self, flows: Sequence[Flow[J]]) -> dict[FlowKey, float]:
        """A tenant's weight is divided among its priorities, each worth twice the next lower one."""
        classes: dict[str, float] = {}
        for flow in flows:
            classes[flow.key.tenant] = classes.get(flow.key.tenant, 0.0) + 2.0**flow.key.priority
        return {
            flow.key: self._weight(flow.key.tenant) * 2.0**flow.key.priority / classes[flow.key.tenant]
            for flow in flows
        }
