"""Quotas over a cluster: whatever the messages do, never more than the quota; once demand is steady, nearly all of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations

import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from tiers import examples

from inferd_runtime.cluster.quota_shares import SPARE, WEIGHT_SPARE, QuotaShare, SharedQuota, divided
from inferd_runtime.server.tenancy.rates import MINUTE, MinuteBucket

WITHIN = 1.1
NAMES = [f"r{at}" for at in range(4)]
LATE = st.frozensets(st.sampled_from(NAMES), max_size=2)
WANTS = st.dictionaries(st.sampled_from("abcdef"), st.floats(0, 1e6), min_size=1)


@given(total=st.floats(0, 1e9), wanted=WANTS)
@settings(max_examples=examples(200))
def test_shares_add_up_and_nobody_is_left_out(total: float, wanted: dict[str, float]) -> None:
    shares = divided(total, wanted)
    assert sum(shares.values()) == pytest.approx(total)
    assert all(share >= 0.999 * SPARE * total / len(wanted) for share in shares.values())


@given(total=st.integers(0, 1000), wanted=WANTS)
@settings(max_examples=examples(200))
def test_whole_shares_add_up_and_are_less_than_one_off(total: int, wanted: dict[str, float]) -> None:
    whole, exact = divided(total, wanted, whole=True), divided(total, wanted)
    assert sum(whole.values()) == total
    assert all(share == int(share) and abs(share - exact[name]) < 1 for name, share in whole.items())


def test_no_replica_no_share() -> None:
    assert divided(5, {}) == {}


@dataclass
class AReplica:
    """Enforces its share alone, and has messages under way in both directions, in any order."""

    share: QuotaShare = field(default_factory=QuotaShare)
    used: float = 0
    refused: float = 0
    down: list[QuotaShare] = field(default_factory=list)
    up: list[tuple[int, float, float]] = field(default_factory=list)

    def take(self) -> None:
        if self.used + 1 <= self.share.amount:
            self.used += 1
        else:
            self.refused += 1

    def hear(self, share: QuotaShare) -> None:
        if share.number > self.share.number:
            self.share = share

    def say(self) -> tuple[int, float, float]:
        said = self.share.number, max(self.used, self.share.amount), self.used + self.refused
        self.refused = 0
        return said


class ACluster(RuleBasedStateMachine):
    """Replicas that take and give back; every message may be late, lost, repeated or out of order; replicas end and come."""

    total = 10

    def __init__(self) -> None:
        super().__init__()
        self.quota, self.replicas = SharedQuota(self.total, whole=True), dict[str, AReplica]()
        for name in NAMES:
            self.begin(name)

    def begin(self, name: str) -> None:
        self.replicas[name] = AReplica()
        self.quota.leave(name)
        self.quota.join(name)

    @rule(name=st.sampled_from(NAMES), count=st.integers(1, 12))
    def take(self, name: str, count: int) -> None:
        for _ in range(count):
            self.replicas[name].take()

    @rule(name=st.sampled_from(NAMES), count=st.integers(1, 12))
    def give_back(self, name: str, count: int) -> None:
        self.replicas[name].used = max(0, self.replicas[name].used - count)

    @rule(late_up=LATE, late_down=LATE)
    def exchange(self, late_up: frozenset[str], late_down: frozenset[str]) -> None:
        for name, replica in self.replicas.items():
            replica.up.append(replica.say())
            if name not in late_up:
                self.quota.report(name, *replica.up[-1])
        for name, share in self.quota.divide().items():
            self.replicas[name].down.append(share)
            if name not in late_down:
                self.replicas[name].hear(share)

    @rule(name=st.sampled_from(NAMES), at=st.integers(1, 4))
    def hear_a_late_share(self, name: str, at: int) -> None:
        down = self.replicas[name].down
        self.replicas[name].hear(down[-min(at, len(down))] if down else QuotaShare())

    @rule(name=st.sampled_from(NAMES), at=st.integers(1, 4))
    def hear_a_late_report(self, name: str, at: int) -> None:
        up = self.replicas[name].up
        if up:
            self.quota.report(name, *up[-min(at, len(up))])

    @rule(name=st.sampled_from(NAMES))
    def end_and_begin(self, name: str) -> None:
        self.begin(name)

    @rule()
    def another_divider_takes_over(self) -> None:
        self.quota = SharedQuota(self.total, whole=True)
        for name, replica in self.replicas.items():
            replica.down.clear()
            replica.up.clear()
            self.quota.join(name, replica.share, replica.used)

    @invariant()
    def never_more_than_the_quota(self) -> None:
        assert sum(replica.used for replica in self.replicas.values()) <= self.quota.held <= self.total


def test_what_is_held_never_exceeds_the_quota_whatever_happens_to_messages() -> None:
    run_state_machine_as_test(
        ACluster, settings=settings(max_examples=examples(100), stateful_step_count=50, deadline=None)
    )


def test_a_report_from_before_a_confirmed_share_is_not_believed() -> None:
    quota = SharedQuota(10, whole=True)
    quota.join("a")
    quota.report("a", 0, 0, 5)
    assert quota.divide()["a"] == QuotaShare(1, 10)
    quota.report("a", 1, 10, 0)
    quota.join("b")
    quota.report("b", 0, 0, 10)
    assert quota.divide() == {"a": QuotaShare(2, 0), "b": QuotaShare()}
    quota.report("a", 0, 0, 5)
    assert quota.held == 10


def test_a_share_that_is_not_confirmed_is_sent_again_and_not_changed() -> None:
    quota = SharedQuota(10, whole=True)
    quota.join("a")
    first = quota.divide()
    quota.join("b")
    quota.report("b", 0, 0, 100)
    assert quota.divide() == {**first, "b": QuotaShare()}
    quota.report("a", 1, 10, 0)
    assert quota.divide() == {"a": QuotaShare(2, 0), "b": QuotaShare()}
    quota.report("a", 2, 4, 4)
    assert quota.divide()["b"] == QuotaShare(1, 6)


def exchange(quota: SharedQuota, replicas: Mapping[str, AReplica]) -> None:
    for name, replica in replicas.items():
        quota.report(name, *replica.say())
    for name, share in quota.divide().items():
        replicas[name].hear(share)


@given(
    total=st.integers(20, 500), demand=st.lists(st.integers(0, 600), min_size=4, max_size=4), shift=st.integers(0, 3)
)
@settings(max_examples=examples(100), deadline=None)
def test_steady_demand_gets_nine_tenths_of_the_quota_wherever_it_moves(
    total: int, demand: list[int], shift: int
) -> None:
    quota, replicas = SharedQuota(total, whole=True), {name: AReplica() for name in NAMES}
    for name in NAMES:
        quota.join(name)
    for wanted in (demand, demand[shift:] + demand[:shift]):
        for _ in range(12):
            for replica, most in zip(replicas.values(), wanted, strict=True):
                replica.used = min(replica.used, most)
                for _ in range(most - int(replica.used)):
                    replica.take()
            exchange(quota, replicas)
    used = sum(replica.used for replica in replicas.values())
    assert used >= 0.9 * min(total, sum(demand)) - len(NAMES)


@given(
    per_minute=st.integers(10, 600),
    schedule=st.lists(st.lists(st.integers(0, 200), min_size=4, max_size=4), min_size=10, max_size=40),
)
@settings(max_examples=examples(100), deadline=None)
def test_a_rate_holds_over_the_cluster_within_a_tenth(per_minute: int, schedule: list[list[int]]) -> None:
    """Every 10 s demand jumps; what all replicas let through in any minute is at most what one server would, and a tenth."""
    quota, replicas = SharedQuota(per_minute, whole=False), {name: AReplica() for name in NAMES}
    buckets = {name: MinuteBucket() for name in NAMES}
    for name in NAMES:
        quota.join(name)
    passed: list[int] = []
    for turn, wanted in enumerate(schedule):
        passed.append(0)
        for (name, replica), want in zip(replicas.items(), wanted, strict=True):
            for _ in range(want):
                if replica.share.amount and not buckets[name].wait(replica.share.amount, 10.0 * turn):
                    buckets[name].charge(replica.share.amount, 10.0 * turn)
                    passed[-1] += 1
                else:
                    replica.refused += 1
        before = {name: replica.share.amount for name, replica in replicas.items()}
        exchange(quota, replicas)
        for name, replica in replicas.items():
            if replica.share.amount > before[name] and turn:
                buckets[name].charge(replica.share.amount, 10.0 * turn, replica.share.amount - before[name])
    for begin in range(len(passed)):
        for end in range(begin + 1, len(passed) + 1):
            most = per_minute + per_minute * 10 * (end - begin - 1) / MINUTE
            assert sum(passed[begin:end]) <= WITHIN * most + len(NAMES)


def fair(weights: Mapping[str, float], places: Mapping[str, frozenset[str]]) -> dict[str, float]:
    """Return each tenant's time under weighted max-min fairness, one unit of time a replica: tightest group first."""
    if not weights:
        return {}

    def level(group: tuple[str, ...]) -> float:
        return len(frozenset().union(*(places[one] for one in group))) / sum(weights[one] for one in group)

    groups = [group for size in range(1, len(weights) + 1) for group in combinations(sorted(weights), size)]
    tight = min(groups, key=lambda group: (level(group), -len(group)))
    taken = frozenset().union(*(places[one] for one in tight))
    rest = {one: weight for one, weight in weights.items() if one not in tight}
    return {one: weights[one] * level(tight) for one in tight} | fair(rest, {one: places[one] - taken for one in rest})


@given(
    weights=st.lists(st.floats(0.5, 4), min_size=2, max_size=4),
    places=st.lists(st.frozensets(st.sampled_from("xyz"), min_size=1), min_size=4, max_size=4),
)
@settings(max_examples=examples(100), deadline=None)
def test_divided_weights_end_in_fair_shares_of_the_clusters_time_within_a_tenth(
    weights: list[float], places: list[frozenset[str]]
) -> None:
    """Each replica divides its time by the weights that it was told, among tenants that always want more."""
    tenants = {f"t{at}": weight for at, weight in enumerate(weights)}
    where = {tenant: places[at] for at, tenant in enumerate(tenants)}
    local = {tenant: divided(weight, dict.fromkeys(sorted(where[tenant]), 1.0)) for tenant, weight in tenants.items()}
    for _ in range(60):
        asked = {name: sum(shares.get(name, 0) for shares in local.values()) for name in "xyz"}
        served = {one: {name: share / asked[name] for name, share in local[one].items()} for one in tenants}
        local = {one: divided(tenants[one], served[one], spare=WEIGHT_SPARE) for one in tenants}
    for tenant, right in fair(tenants, where).items():
        assert sum(served[tenant].values()) == pytest.approx(right, rel=0.1)
