"""The speculation controller against other policies and an oracle, on recorded drafts of the embedded model.

python benchmarks/controller.py [--quick] [--record] [--docs docs]
python benchmarks/controller.py --real [--record]

``--real``: on drafts of a real model, with its measured step times on one thread (``docs/data/cluster_step_costs.json``).
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean, median

from cluster_sim_costs import kept_times
from controller_policies import AcceptanceUcb, Clairvoyant, CostModel, EmaTiers, Fixed, Oracle, Policy, chances_of
from controller_report import table, write
from controller_traces import LENGTH, REAL_TRACES, Place, Trace, load, record, record_real, synthetic

from inferd_runtime.speculation.times import StepShape, StepTimes

SEEDS = 2
FIRST_SEED = 100
STEPS = {1: 3000, 4: 1500, 16: 1000, 64: 500, 256: 300}
ROW_COST = {1: 0.01, 16: 0.06, 64: 0.3, 256: 0.8}
"""By batch: what one more row for every sequence costs, as a share of a step without drafts."""


REAL_BATCHES = (1, 4, 16)
MakeTimes = Callable[[int], StepTimes]


def step_times(batch: int) -> StepTimes:
    """A device on which a step without drafts takes 1 at this batch."""
    share = ROW_COST[batch]
    return StepTimes.linear(1 - share, share / batch)


def real_times(batch: int) -> StepTimes:
    """The measured times of a real model, the same for every batch."""
    return kept_times()


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

    def length(self, lane: int) -> int:
        """How many tokens a request has."""
        return len(self._running[lane])

    def advance(self, lane: int, emitted: int) -> bool:
        """Move a request on; True when another one took its place."""
        self._at[lane] += emitted
        if self._at[lane] < len(self._running[lane]):
            return False
        self._at[lane], self._running[lane] = 0, self._next()
        return True


def rate(policy: Policy, traces: Sequence[Trace], lanes: int, times: StepTimes, seed: int) -> float:
    """Tokens per sequence in the time of a step without drafts, over so many steps of a batch that is always full."""
    batch, emitted, seconds = Batch(traces, lanes, seed), 0, 0.0
    for lane in range(lanes):
        policy.begin(lane, batch.length(lane))
    costs = times.times(StepShape(lanes, lanes, 0), lanes * LENGTH)
    for _ in range(STEPS[lanes]):
        places = batch.places
        lengths = policy.lengths(places)
        seconds += costs[sum(lengths)]
        policy.learn(places, lengths, costs[sum(lengths)])
        for lane, (place, length) in enumerate(zip(places, lengths, strict=True)):
            count = 1 + min(place.held, length)
            emitted += count
            if batch.advance(lane, count):
                policy.begin(lane, batch.length(lane))
    return emitted / seconds / lanes * costs[0]


def policies(lanes: int, traces: Sequence[Trace], times: StepTimes) -> dict[str, Callable[[], Policy]]:
    """By name."""
    chances = chances_of(traces)
    return {
        "fixed 4": lambda: Fixed(4),
        "fixed 16": lambda: Fixed(16),
        "EMA tiers": lambda: EmaTiers(lanes),
        "UCB1": lambda: AcceptanceUcb(lanes),
        "cost model": lambda: CostModel(lanes, times),
        "oracle": lambda: Oracle(times, chances),
        "clairvoyant": lambda: Clairvoyant(times),
    }


def compare(
    lanes: int, traces: Sequence[Trace], seeds: int, names: Sequence[str] = (), times: MakeTimes = step_times
) -> dict[str, float]:
    """The mean rate of every policy at one batch."""
    costs = times(lanes)
    return {
        name: mean(rate(make(), traces, lanes, costs, seed) for seed in range(seeds))
        for name, make in policies(lanes, traces, costs).items()
        if not names or name in names
    }


Cells = dict[tuple[int, str], dict[str, float]]


def share_of_oracle(cells: Cells) -> dict[tuple[int, str], float]:
    """The cost model's rate over the oracle's."""
    return {cell: figures["cost model"] / figures["oracle"] for cell, figures in cells.items()}


def real(seeds: int) -> None:
    """Print the table of the real model, and JSON."""
    recorded = load(REAL_TRACES)
    cells = {
        (lanes, kind): compare(lanes, traces, seeds, times=real_times)
        for lanes in REAL_BATCHES
        for kind, traces in recorded.items()
    }
    shares = share_of_oracle(cells)
    print(table(cells))
    figures = {
        "controller_real_vs_oracle_min": min(shares.values()),
        "controller_real_vs_oracle_median": median(shares.values()),
        "controller_real_min": min(each["cost model"] for each in cells.values()),
    }
    print(json.dumps({name: round(value, 4) for name, value in figures.items()}))


def main() -> None:
    """Run every cell and print the table, JSON last."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one seed and fewer random workloads")
    parser.add_argument("--record", action="store_true", help="run the embedded model and record its drafts again")
    parser.add_argument("--docs", type=Path, help="folder to write speculation-controller.md and .svg into")
    parser.add_argument("--real", action="store_true", help="drafts and step times of a real model")
    options = parser.parse_args()
    if options.record:
        record_real() if options.real else record()
    if options.real:
        return real(1 if options.quick else SEEDS)
    seeds, recorded = 1 if options.quick else SEEDS, load()
    cells = {(lanes, kind): compare(lanes, recorded[kind], seeds) for lanes in ROW_COST for kind in recorded}
    print(table(cells))
    names = ("cost model", "oracle")
    random_cells = {
        (lanes, f"random {seed}"): compare(lanes, synthetic(FIRST_SEED + seed), 1, names)
        for lanes in ROW_COST
        for seed in range(3 if options.quick else 10)
    }
    shares, random_shares = share_of_oracle(cells), sorted(share_of_oracle(random_cells).values())
    bounds = [each["cost model"] / each["clairvoyant"] for each in cells.values()]
    figures = {
        "controller_vs_oracle_min": min(shares.values()),
        "controller_vs_clairvoyant_min": min(bounds),
        "controller_adversarial_min": min(
            each["cost model"] for (_, kind), each in cells.items() if kind == "adversarial"
        ),
        "controller_vs_oracle_random_min": random_shares[0],
        "controller_vs_oracle_random_median": median(random_shares),
    }
    if options.docs:
        write(options.docs, cells, figures)
    print(json.dumps({name: round(value, 4) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
