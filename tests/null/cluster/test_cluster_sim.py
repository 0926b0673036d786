"""A small version of ``benchmarks/cluster_sim.py``: every run ends once, and the router beats the simpler rules."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
from cluster_sim import Outcome, outcomes, workload
from cluster_sim_costs import kept_times
from cluster_sim_load import Failure, Workload, arrivals, failures
from cluster_sim_model import Cluster
from cluster_sim_rules import RULES, Routed

REPLICAS, RUNS, LOAD = 12, 1500, 0.5


@pytest.fixture(scope="module")
def found() -> dict[str, Outcome]:
    return {one.rule: one for one in outcomes(kept_times(), REPLICAS, LOAD, RUNS)}


def test_every_rule_serves_the_same_runs_to_their_ends(found: dict[str, Outcome]) -> None:
    assert list(found) == list(RULES)
    assert {one.runs for one in found.values()} == {RUNS}


def test_the_router_finds_more_prefixes_and_answers_sooner(found: dict[str, Outcome]) -> None:
    ours = found["ours"]
    assert ours.hit_rate > 1.3 * found["random"].hit_rate
    assert ours.hit_rate >= 0.95 * found["consistent hash"].hit_rate
    assert all(ours.p99_s < one.p99_s for name, one in found.items() if name != "ours")


def test_the_router_divides_the_work(found: dict[str, Outcome]) -> None:
    assert found["ours"].imbalance < 1.25 < found["consistent hash"].imbalance


def test_the_same_seed_gives_the_same_figures(found: dict[str, Outcome]) -> None:
    again = {one.rule: one for one in outcomes(kept_times(), REPLICAS, LOAD, RUNS)}
    assert {rule: asdict(one) for rule, one in again.items()} == {rule: asdict(one) for rule, one in found.items()}


def test_arrivals_have_the_rate_the_sessions_and_the_zipf_that_were_asked_for() -> None:
    load = Workload(replicas=10, runs=20_000, rate=5.0)
    runs = arrivals(load, 1)
    assert len(runs) == load.runs
    assert load.runs / load.rate == pytest.approx(runs[-1].at, rel=0.05)
    assert sum(run.session is not None for run in runs) / len(runs) == pytest.approx(load.in_sessions, abs=0.03)
    first = sum(run.segments[0][0] == ("program", 0) for run in runs) / len(runs)
    weights = [1 / rank**load.zipf for rank in range(1, 10 * load.programs_per_replica + 1)]
    assert first == pytest.approx(1 / sum(weights), abs=0.02)


def test_a_run_whose_replica_ends_is_served_by_another_and_by_the_same_one_if_there_is_no_other() -> None:
    times, load = kept_times(), Workload(replicas=1, runs=50, rate=5.0)
    runs = arrivals(load, 1)
    broken = [Failure(runs[20].at, replica, 10.0) for replica in (0, 1)]
    for replicas in (1, 2):
        result = Cluster(Routed(affinity=True), replicas, times).simulate(runs, broken[:replicas])
        assert result.ended == len(result.first_token) == load.runs
        assert result.restarted > 0


def test_failures_are_drawn_where_there_is_more_than_one_replica() -> None:
    assert failures(workload(kept_times(), 1, 0.5), 1, 100) == []
    drawn = failures(workload(kept_times(), 100, 0.5), 1, 100)
    assert len(drawn) == 2
    assert all(10 <= one.at <= 80 for one in drawn)
