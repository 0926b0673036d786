"""What steps cost, measured once and kept: a start that finds it is quicker by the seconds that measuring takes.

What a step takes while serving corrects the times anyway (:class:`~inferd_runtime.speculation.times.StepTimes`).
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from inferd_runtime.engine.driver import Driver
from inferd_runtime.engine.scheduling.costs import Seconds, measure_cost, measure_times
from inferd_runtime.engine.scheduling.fairness import StepCost
from inferd_runtime.kept_results import KeptResults, key_of
from inferd_runtime.speculation.times import Profile, StepTimes

LEAST_SHARE = 0.7
ROOMS = ("engine", "models", "kernels")
"""Whose code the costs depend on."""


@dataclass(frozen=True)
class KeptCosts:
    """A :class:`~inferd_runtime.engine.scheduling.fairness.StepCost` and a :class:`~inferd_runtime.speculation.times.Profile`."""

    cost: StepCost
    sequences: tuple[int, ...]
    rows: tuple[int, ...]
    seconds: tuple[tuple[float, ...], ...]
    context: float
    reread: float
    tree: float
    uneven: float

    @classmethod
    def of(cls, cost: StepCost, profile: Profile) -> KeptCosts:
        """Return what is kept of these."""
        seconds = tuple(tuple(row) for row in profile.seconds.tolist())
        return cls(cost, tuple(profile.sequences), tuple(profile.rows), seconds, *profile[3:])

    def times(self) -> StepTimes:
        """Return the times, with nothing learnt yet."""
        seconds = np.asarray(self.seconds)
        return StepTimes(Profile(self.sequences, self.rows, seconds, self.context, self.reread, self.tree, self.uneven))


def known_costs(
    driver: Driver, depends: tuple[object, ...], kept: KeptResults[KeptCosts], clock: Seconds | None = None
) -> tuple[StepCost, StepTimes]:
    """Return what steps of a driver cost: what is kept for all that it ``depends`` on, else what is measured now.

    Measuring writes into pages, which must be unused; ``clock``: see :func:`measure_cost`.
    """
    key = key_of((type(driver).__name__, driver.pages, driver.page_size, driver.kv_layout, *depends), ROOMS)
    found = kept.find(key)
    if found is not None:
        return found.cost, found.times()
    wall, cpu = clocks()
    cost, times = measure_cost(driver, clock), measure_times(driver, clock=clock)
    wall, cpu = (now - then for now, then in zip(clocks(), (wall, cpu), strict=True))
    # Where neighbours had the processor for long, the times say more about them: the next start measures again.
    if cost.timed and times.learns and cpu >= LEAST_SHARE * wall:
        kept.keep(key, KeptCosts.of(cost, times.profile))
    return cost, times


def clocks() -> tuple[float, float]:
    """Return the time by the clock, and this process's on processors, in seconds."""
    return time.perf_counter(), time.process_time()
