"""The speculation controller against other policies and an oracle, on recorded drafts of the embedded model.

python benchmarks/controller.py [--quick] [--record] [--docs docs]
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path

from controller_policies import (
    AcceptanceUcb, Clairvoyant, CostModel, EmaTiers, Fixed, Hindsight, Policy, chances_of,
)  # fmt: skip
from controller_traces import LENGTH, Place, Trace, load, record, synthetic

from inferd_runtime.speculation.times import StepShape, StepTimes

ROW_COST = {1: 0.01, 16: 0.06, 64: 0.3, 256: 0.8}
"""By batch: what one more row for every sequence costs, as a share of a step without drafts."""


def step_times(batch: int) -> StepTimes:
    """A device on which a step without drafts takes 1 at this batch."""
    share = ROW_COST[batch]
    return StepTimes.linear(1 - share, share / batch)


class Batch:
    """Requests in their places: whoever ends makes room for another."""

    def __init__(self, traces: Sequence[Trace], lanes: int, seed: int) -> None:
        self._rng = random.Random(seed)
        self._traces = traces
        self._at = [0] * lanes
        self._running = [self._next() for _ in range(lanes)]

    def _next(self) -> Trace:
        return self._rng.choice(self._traces)

    @property
    def places(self) -> list[Place]:
        """Where each request stands."""
        return [trace[at] for trace, at in zip(self._running, self._at, strict=True)]

    def advance(self, lane: int, emitted: int) -> bool:
        """Move a request on; True when another one took its place."""
        self._at[lane] += emitted
        if self._at[lane] < len(self._running[lane]):
            return False
        self._at[lane], self._running[lane] = 0, self._next()
        return True


def rate(policy: Policy, traces: Sequence[Trace], lanes: int, tokens: int, seed: int, noise: float = 0.0) -> float:
    """Tokens per step time and sequence, until ``tokens`` were emitted."""
    batch, times, rng = Batch(traces, lanes, seed), step_times(lanes), random.Random(seed)
    emitted, seconds = 0, 0.0
    costs = times.times(StepShape(lanes, lanes, 0), lanes * LENGTH)
    while emitted < tokens:
        places = batch.places
        lengths = policy.lengths(places)
        step = float(costs[sum(min(length, LENGTH) for length in lengths)])
        seconds += step
        policy.learn(places, lengths, step)
        for lane, (place, length) in enumerate(zip(places, lengths, strict=True)):
            count = 1 + min(place.held, length)
            emitted += count
            if batch.advance(lane, count):
                policy.begin(lane)
    return emitted / seconds / lanes


def policies(lanes: int, traces: Sequence[Trace]) -> dict[str, Callable[[], Policy]]:
    """By name."""
    times = step_times(lanes)
    chances = chances_of(traces)
    return {
        "fixed 4": lambda: Fixed(4),
        "fixed 16": lambda: Fixed(16),
        "EMA tiers": lambda: EmaTiers(lanes),
        "UCB1(accept)": lambda: AcceptanceUcb(lanes),
        "cost model": lambda: CostModel(lanes, times),
        "hindsight": lambda: Hindsight(times, chances),
        "clairvoyant": lambda: Clairvoyant(times),
    }
