"""From one replica to a thousand: routing rules compared by a discrete-event simulation, on the very same runs and failures.

    python benchmarks/cluster_sim.py [--quick] [--replicas 1,10,100,1000] [--load 0.6] [--sweep] [--plots docs]

Step costs are measured ones (docs/data/cluster_step_costs.json, by benchmarks/cluster_sim_costs.py). The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from cluster_sim_costs import kept_times
from cluster_sim_load import Workload, arrivals, failures
from cluster_sim_model import Cluster, SimResult
from cluster_sim_rules import RULES, SWEEP, Rule
from named_options import listed

from inferd_runtime.speculation.times import StepShape, StepTimes

SEED = 1
BATCH = 8
RUNS_PER_REPLICA = 400
LEAST_RUNS = 4_000
MOST_RUNS = 100_000


@dataclass(frozen=True)
class Outcome:
    """One rule at one size. Times in seconds; ``imbalance``: busy time of the busiest replica over the mean."""

    replicas: int
    load: float
    rule: str
    runs: int
    hit_rate: float
    p50_s: float
    p99_s: float
    imbalance: float
    busy: float
    restarted: int


def capacity(times: StepTimes, load: Workload) -> float:
    """Return the runs per second of a replica that is always busy with eight answers, and finds all common prefixes cached."""
    context = load.program_tokens + load.prefix_tokens + load.own_tokens
    step = times.time(StepShape(BATCH, BATCH, BATCH * context))
    prompt = times.time(StepShape(1, load.own_tokens, context))
    return 1 / (load.answer_tokens * step / BATCH + prompt)


def workload(times: StepTimes, replicas: int, load: float, runs: int = 0) -> Workload:
    """Return what arrives at so many replicas. ``load`` of 1 is their :func:`capacity`."""
    runs = runs or min(MOST_RUNS, max(LEAST_RUNS, RUNS_PER_REPLICA * replicas))
    rate = load * replicas * capacity(times, Workload(1, 1, 1.0))
    return Workload(replicas=replicas, runs=runs, rate=rate)


def outcomes(
    times: StepTimes, replicas: int, load: float, runs: int = 0, rules: Mapping[str, Callable[[], Rule]] = RULES
) -> list[Outcome]:
    """Serve the same runs by each rule."""
    wanted = workload(times, replicas, load, runs)
    drawn = arrivals(wanted, SEED)
    broken = failures(wanted, SEED, drawn[-1].at)
    found = []
    for name, make in rules.items():
        result = Cluster(make(), replicas, times).simulate(drawn, broken)
        assert result.ended == len(drawn)
        found.append(outcome(result, name, replicas, load))
    return found


def outcome(result: SimResult, rule: str, replicas: int, load: float) -> Outcome:
    """Return a simulation's figures."""
    waits, busy = sorted(result.first_token.values()), list(result.busy.values())
    mean = sum(busy) / len(busy)
    return Outcome(
        replicas=replicas, load=load, rule=rule, runs=result.ended,
        hit_rate=round(result.cached_tokens / result.prompt_tokens, 3),
        p50_s=round(waits[len(waits) // 2], 2), p99_s=round(waits[int(0.99 * len(waits))], 2),
        imbalance=round(max(busy) / mean, 2), busy=round(mean / result.seconds, 2), restarted=result.restarted,
    )  # fmt: skip


def table(found: Sequence[Outcome]) -> str:
    """Return the outcomes as a table in Markdown."""
    head = "| replicas | load | rule | cached | first token p50 / p99, s | busiest / mean | busy | started again |"
    rows = [
        f"| {one.replicas} | {one.load} | {one.rule} | {one.hit_rate:.1%} | {one.p50_s} / {one.p99_s} | {one.imbalance} "
        f"| {one.busy:.0%} | {one.restarted} |"
        for one in found
    ]
    return "\n".join([head, "|---|---|---|---|---|---|---|---|", *rows])


def main() -> None:
    """Simulate all sizes, print a table as it grows, and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=listed(int), default="1,10,100,1000")
    parser.add_argument("--load", type=listed(float), default="0.6", help="parts of the capacity, separated by commas")
    parser.add_argument("--quick", action="store_true", help="two small sizes with few runs")
    parser.add_argument(
        "--sweep", action="store_true", help="the router with other bounds of its override, no other rules"
    )
    parser.add_argument("--plots", type=Path, help="a folder for cluster-sim.svg; needs matplotlib")
    options = parser.parse_args()
    times, found = kept_times(), list[Outcome]()
    print(f"capacity of a replica: {capacity(times, Workload(1, 1, 1.0)):.2f} runs/s", flush=True)
    rules = SWEEP if options.sweep else RULES
    sizes = [4, 16] if options.quick else options.replicas
    for load in options.load:
        for size in sizes:
            started = time.process_time()
            found += outcomes(times, size, load, 400 if options.quick else 0, rules)
            print(table(found[-len(rules) :]), f"({time.process_time() - started:.0f} s)", sep="\n", flush=True)
    if options.plots:
        from cluster_sim_plots import draw

        draw(found, options.plots / "cluster-sim.svg")
    print(json.dumps([asdict(one) for one in found]))


if __name__ == "__main__":
    main()
