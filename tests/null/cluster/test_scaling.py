"""How many replicas there should be."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings, strategies as st
from tiers import examples

from inferd_runtime.cluster.ray_serve.scaling import (
    JOBS,
    KV_USE,
    LoadPolicy,
    ReplicaDemand,
    ScalingTarget,
    wanted_replicas,
)

DEMANDS = st.lists(st.builds(ReplicaDemand, st.integers(0, 100).map(float), st.floats(0, 1)), max_size=8)
TARGETS = st.builds(ScalingTarget, st.floats(0.5, 50), st.floats(0.1, 1))


@given(demands=DEMANDS, target=TARGETS, least=st.integers(1, 4), more=st.integers(0, 20))
@settings(max_examples=examples(200), deadline=None)
def test_the_average_comes_to_the_target_with_no_replica_more_than_that_takes(
    demands: list[ReplicaDemand], target: ScalingTarget, least: int, more: int
) -> None:
    most = least + more
    wanted = wanted_replicas(demands, target, least, most)
    jobs, kv_use = sum(one.jobs for one in demands), sum(one.kv_use for one in demands)
    assert least <= wanted <= most
    if wanted < most:
        assert jobs <= target.jobs * wanted * (1 + 1e-6) + 1e-6
        assert kv_use <= target.kv_use * wanted * (1 + 1e-6) + 1e-6
    if wanted > least:
        assert jobs > target.jobs * (wanted - 1) or kv_use > target.kv_use * (wanted - 1)


def _context(**changes: Any) -> Any:
    figures = {JOBS: {"a": 30.0, "b": 10.0}, KV_USE: {"a": 0.2, "b": 0.1}}
    usual = {
        "aggregated_metrics": figures, "running_replicas": ["a", "b"], "current_num_replicas": 2, "target_num_replicas": 2,
        "capacity_adjusted_min_replicas": 1, "capacity_adjusted_max_replicas": 9,
    }  # fmt: skip
    return SimpleNamespace(**{**usual, **changes})


def test_the_policy_counts_all_replicas_and_changes_nothing_while_it_does_not_know_them() -> None:
    policy = LoadPolicy(jobs=10.0, kv_use=0.7)
    assert policy(_context()) == (4, {})
    assert policy(_context(aggregated_metrics=None)) == (2, {})
    assert policy(_context(current_num_replicas=3, target_num_replicas=3)) == (3, {})
