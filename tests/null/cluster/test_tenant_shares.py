"""A front and its replicas, without a network: what tenants may hold, and what they get of the engines' time, within a tenth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations

import pytest
from hypothesis import given, settings, strategies as st
from tiers import examples

from inferd_runtime.cluster.front.exchange import TenantExchange
from inferd_runtime.cluster.messages import FETCHES, KV_PAGES, RUNS, FrontOrder, ReplicaReport
from inferd_runtime.cluster.replica.quotas import ReplicaQuotas
from inferd_runtime.engine.scheduling.fairness import LINGER_LEADS, FairClock
from inferd_runtime.server.tenancy.quotas import NOTHING, Quotas, same_for_all
from inferd_runtime.server.tenancy.tenant_use import TenantUse
from inferd_runtime.session.shared_tenants import MOST_ELSEWHERE_SECONDS

POLL_SECONDS = 0.25
STEP_SECONDS = 0.02


@dataclass
class AReplica:
    """Starts runs as its share of the quota says, and keeps those that it has."""

    name: str
    quotas: ReplicaQuotas
    running: Counter[str] = field(default_factory=Counter)
    waiting: Counter[str] = field(default_factory=Counter)
    served: Counter[str] = field(default_factory=Counter)

    def hear(self, order: FrontOrder) -> ReplicaReport:
        self.quotas.ordered(order)
        self.start()
        uses = self.quotas.uses({RUNS: self.running}, {RUNS: self.running + self.waiting})
        return ReplicaReport(name=self.name, uses=uses, served=dict(self.served), parts=self.quotas.parts)

    def start(self) -> None:
        for tenant in list(self.waiting):
            most = self.quotas.quotas(tenant).runs
            while self.waiting[tenant] and (not most or self.running[tenant] < most):
                self.waiting[tenant] -= 1
                self.running[tenant] += 1


class ACluster:
    def __init__(self, whole: Quotas, *names: str) -> None:
        self.whole = same_for_all(whole)
        self.exchange = TenantExchange(TenantUse(self.whole))
        self.replicas: dict[str, AReplica] = {}
        for name in names:
            self.join(name)
        self.poll()
        self.poll()

    def join(self, name: str, front: str = "f") -> None:
        replica = self.replicas.setdefault(name, AReplica(name, ReplicaQuotas(self.whole)))
        self.exchange.join(name)
        self.exchange.heard(replica.hear(self.exchange.order(name, front)), 0)

    def poll(self, *lost: str) -> None:
        self.exchange.divide()
        for name, replica in self.replicas.items():
            if name not in lost:
                self.exchange.heard(replica.hear(self.exchange.order(name, "f")), 0)

    def running(self, tenant: str) -> int:
        return sum(one.running[tenant] for one in self.replicas.values())


@given(
    total=st.integers(1, 40),
    schedule=st.lists(
        st.tuples(st.sampled_from("wxyz"), st.integers(-20, 20), st.frozensets(st.sampled_from("xyz"), max_size=2)),
        max_size=30,
    ),
)
@settings(max_examples=examples(200), deadline=None)
def test_runs_of_a_tenant_are_never_more_than_its_quota_over_all_replicas(
    total: int, schedule: list[tuple[str, int, frozenset[str]]]
) -> None:
    cluster = ACluster(Quotas(runs=total))
    for name, change, lost in schedule:
        if name not in cluster.replicas:
            cluster.join(name)
        replica = cluster.replicas[name]
        if change > 0:
            replica.waiting["ann"] += change
            replica.start()
        else:
            replica.running["ann"] = max(replica.running["ann"] + change, 0)
        cluster.poll(*lost)
        assert cluster.running("ann") <= total
    for _ in range(16):
        cluster.poll()
    wanted = cluster.running("ann") + sum(one.waiting["ann"] for one in cluster.replicas.values())
    assert cluster.running("ann") >= 0.9 * min(total, wanted) - len(cluster.replicas)


def test_a_replica_that_joins_has_nothing_of_what_is_divided_already() -> None:
    cluster = ACluster(Quotas(runs=10), "x")
    cluster.replicas["x"].waiting["ann"] = 30
    for _ in range(8):
        cluster.poll()
    assert cluster.running("ann") == 10
    cluster.join("y")
    cluster.replicas["y"].waiting["ann"] = 5
    cluster.replicas["y"].start()
    assert cluster.running("ann") == 10
    assert cluster.replicas["y"].quotas.quotas("ann").runs == NOTHING
    cluster.replicas["x"].running["ann"] = 4
    cluster.replicas["x"].waiting["ann"] = 0
    for _ in range(8):
        cluster.poll()
    assert cluster.replicas["y"].running["ann"] == 5


def test_another_front_goes_on_with_the_shares_that_there_are() -> None:
    cluster = ACluster(Quotas(runs=10), "x", "y")
    cluster.replicas["x"].waiting["ann"] = 30
    for _ in range(8):
        cluster.poll()
    cluster.exchange = TenantExchange(TenantUse(cluster.whole))
    for name in ("y", "x"):
        cluster.join(name, "another")
    cluster.replicas["y"].waiting["ann"] = 30
    for _ in range(8):
        cluster.poll()
        assert cluster.running("ann") == 10
    cluster.replicas["x"].running["ann"] = 0
    for _ in range(8):
        cluster.poll()
    assert cluster.running("ann") == 10
    assert cluster.replicas["y"].running["ann"] >= 4, "who waits elsewhere is not behind all that wait here"


def test_a_replica_that_falls_silent_keeps_nothing_from_others_and_comes_back() -> None:
    cluster = ACluster(Quotas(runs=10), "x", "y")
    x, y = cluster.replicas["x"], cluster.replicas["y"]
    x.waiting["ann"] = 30
    for _ in range(8):
        cluster.poll()
    assert x.running["ann"] == 10
    cluster.exchange.leave("x")
    y.waiting["ann"] = 30
    for _ in range(8):
        cluster.poll("x")
    assert y.running["ann"] == 10
    x.quotas.ordered(cluster.exchange.order("x", "f"))
    assert x.quotas.quotas("ann").runs == NOTHING, "should it hear, it starts nothing more"
    x.running["ann"] = 0
    cluster.exchange.join("x")
    for _ in range(8):
        cluster.poll()
        assert cluster.running("ann") <= 10
    y.running["ann"] = y.waiting["ann"] = 0
    for _ in range(8):
        cluster.poll()
    assert x.running["ann"] == 10


def test_neither_what_has_no_limit_nor_what_is_remembered_is_divided() -> None:
    cluster = ACluster(Quotas(runs=0, kept_runs=5, kept_bytes=0), "x", "y")
    replica = cluster.replicas["x"]
    replica.waiting["ann"] = 1000
    cluster.poll()
    assert replica.running["ann"] == 1000
    assert (replica.quotas.quotas("ann").kept_runs, replica.quotas.quotas("ann").kept_bytes) == (5, 0)


def test_runs_that_wait_for_a_share_do_not_wait_for_a_worker() -> None:
    cluster = ACluster(Quotas(runs=10), "x", "y")
    short = cluster.replicas["x"].quotas.short_of_workers
    assert short({"ann": 5}, {"ann": 7}) == {"ann": 0}
    assert short({"ann": 3}, {"ann": 7}) == {"ann": 2}
    cluster = ACluster(Quotas(runs=0), "x")
    assert cluster.replicas["x"].quotas.short_of_workers({"ann": 3}, {"ann": 7}) == {"ann": 7}


def test_pages_go_where_they_are_held() -> None:
    exchange = TenantExchange(TenantUse(same_for_all(Quotas(runs=0, kv_pages=1000))))
    replicas = {name: ReplicaQuotas(same_for_all(Quotas(runs=0, kv_pages=1000))) for name in "xy"}
    for name in replicas:
        exchange.join(name)
    held = {"x": 400, "y": 0}
    for _ in range(10):
        for name, quotas in replicas.items():
            quotas.ordered(exchange.order(name, "f"))
            used = {KV_PAGES: {"ann": held[name]} if held[name] else {}}
            exchange.heard(ReplicaReport(name=name, uses=quotas.uses(used, {}), parts=quotas.parts), 0)
        exchange.divide()
        shares = {name: quotas.page_shares().get("ann", 500) for name, quotas in replicas.items()}
        assert sum(shares.values()) <= 1000
        held["x"] = min(950, shares["x"])
    assert held["x"] >= 900


def test_one_replica_gets_nearly_all_fetches_of_a_tenant_that_fetches_there_alone() -> None:
    whole = same_for_all(Quotas(fetches=64))
    exchange = TenantExchange(TenantUse(whole))
    replicas = {name: ReplicaQuotas(whole) for name in "xyz"}
    for name in replicas:
        exchange.join(name)
    open_there = 0
    for _ in range(12):
        for name, quotas in replicas.items():
            quotas.ordered(exchange.order(name, "f"))
            used = {FETCHES: {"ann": open_there}} if name == "x" and open_there else {}
            exchange.heard(ReplicaReport(name=name, uses=quotas.uses(used, {}), parts=quotas.parts), 0)
        exchange.divide()
        shares = [max(quotas.quotas("ann").fetches, 0) for quotas in replicas.values()]
        assert sum(shares) <= 64
        open_there = shares[0]
    assert open_there >= 0.9 * 64


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
@settings(max_examples=examples(40), deadline=None)
def test_tenants_get_the_clusters_time_by_weight_within_a_tenth(
    weights: list[float], places: list[frozenset[str]]
) -> None:
    """Each replica's engine serves whom its own clock says, of tenants that always want more."""
    tenants = {f"t{at}": weight for at, weight in enumerate(weights)}
    where = {tenant: places[at] for at, tenant in enumerate(tenants)}
    received = served_for(32.0, tenants, where)
    for tenant, right in fair(tenants, where).items():
        assert received[tenant] == pytest.approx(right, rel=0.1, abs=0.02)


def served_for(seconds: float, weights: Mapping[str, float], places: Mapping[str, frozenset[str]]) -> dict[str, float]:
    """Return the time per second that each tenant received in the second half."""
    cluster = ACluster(Quotas(runs=0), *"xyz")
    clocks = {name: FairClock(weights.__getitem__, linger=LINGER_LEADS) for name in "xyz"}
    halfway: Counter[str] = Counter()
    for clock in clocks.values():
        clock.allow(STEP_SECONDS)
    for step in range(round(seconds / STEP_SECONDS)):
        if step % round(POLL_SECONDS / STEP_SECONDS) == 0:
            for name, replica in cluster.replicas.items():
                for tenant, elsewhere in replica.quotas.take_elsewhere().items():
                    clocks[name].charge_elsewhere(tenant, elsewhere, MOST_ELSEWHERE_SECONDS)
                replica.served.update(clocks[name].take_given())
            cluster.poll()
        if step == round(seconds / STEP_SECONDS / 2):
            halfway = total(cluster)
        for name, clock in clocks.items():
            wanting = [tenant for tenant in weights if name in places[tenant]]
            for tenant in clock.next_round(wanting)[:1]:
                clock.charge(tenant, STEP_SECONDS)
    return {tenant: (amount - halfway[tenant]) * 2 / seconds for tenant, amount in total(cluster).items()}


def total(cluster: ACluster) -> Counter[str]:
    received: Counter[str] = Counter()
    for replica in cluster.replicas.values():
        received.update(replica.served)
    return received


def test_a_tenant_waits_at_most_a_moment_for_what_it_had_elsewhere() -> None:
    clock = FairClock[str](lambda tenant: 1.0, linger=LINGER_LEADS)
    clock.allow(STEP_SECONDS)
    clock.next_round(["ann", "bob"])
    clock.charge_elsewhere("ann", 3600.0, MOST_ELSEWHERE_SECONDS)
    turns = 0
    while "ann" not in clock.next_round(["ann", "bob"]):
        clock.charge("bob", STEP_SECONDS)
        turns += 1
    assert turns * STEP_SECONDS <= MOST_ELSEWHERE_SECONDS
    assert clock.next_round(["ann"]) == ["ann"]
