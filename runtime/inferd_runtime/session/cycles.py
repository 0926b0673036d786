"""A feed of each tenant's delivered steps, for clients that watch speculation."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from inferd.protocol import Step
from inferd.speculation_stats import SpeculationCycle
from inferd_runtime.session.wire import CyclePage, WatchedCycle

KEPT = 4096
"""Steps that are kept for a slow watcher; of more, the oldest are dropped and counted."""
WATCHED_SECONDS = 5.0
"""A watcher that has not polled for so long is dropped."""


@dataclass
class _Watch:
    """One tenant's steps. ``next`` is the index of the next one to come."""

    until: float
    next: int = 0
    kept: deque[WatchedCycle] = field(default_factory=lambda: deque(maxlen=KEPT))


class CycleFeed:
    """The steps of all tenants that are watched. A tenant without a watcher costs one dictionary lookup per step.

    Steps of a tenant that was watched before are counted, so that a late watcher learns how many it missed.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._watched: dict[str, _Watch] = {}

    def publish(self, tenant: str, session: str, generation: int, first: int, steps: Sequence[Step]) -> None:
        """Note delivered steps of a generation, whose ``first`` is the number of the first one."""
        watch = self._watched.get(tenant)
        if watch is None:
            return
        if watch.until < self._clock():
            watch.kept.clear()
            watch.next += sum(step.joined for step in steps)
            return
        alone = [replace(step, joined=1) for step in steps for _ in range(step.joined)]
        for number, step in enumerate(alone, start=first):
            cycle = SpeculationCycle.of(number, step)
            watch.kept.append(
                WatchedCycle(
                    watch.next, session, generation,
                    cycle.step, cycle.source, cycle.drafted, cycle.accepted, cycle.emitted,
                )
            )  # fmt: skip
            watch.next += 1

    def read(self, tenant: str, after: int) -> CyclePage:
        """Return the tenant's steps from index ``after`` on (-1: only later ones), and go on watching."""
        watch = self._watched.setdefault(tenant, _Watch(0.0))
        watch.until = self._clock() + WATCHED_SECONDS
        if not 0 <= after <= watch.next:
            return CyclePage([], watch.next)
        new = [cycle for cycle in watch.kept if cycle.index >= after]
        return CyclePage(new, watch.next, watch.next - after - len(new))
