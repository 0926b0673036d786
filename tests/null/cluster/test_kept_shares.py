"""Finished runs of a tenant over all replicas: the newest stay, as many as its quotas say, wherever they ran."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import pytest
from hypothesis import given, settings, strategies as st
from tiers import examples

from inferd_runtime.cluster.kept_shares import KeptLedger, KeptShares
from inferd_runtime.cluster.messages import KEPT_RUNS, ReplicaReport
from inferd_runtime.server.run_store.pruning import split_kept
from inferd_runtime.server.tenancy.kept_counts import Kept, KeptCounts
from inferd_runtime.server.tenancy.quotas import Quotas, same_for_all

LOOSE = Quotas(kept_runs=0, kept_bytes=0)


@dataclass
class AReplica:
    """Keeps runs, each with its number and its size, oldest first, and forgets those that it is told to."""

    name: str
    quotas: Quotas
    runs: list[tuple[int, int]] = field(default_factory=list)
    heir_of: list[str] = field(default_factory=list)
    clock: Callable[[], float] = float

    def __post_init__(self) -> None:
        self.counts = KeptCounts(self.clock)

    def finish(self, number: int, size: int) -> None:
        self.runs.append((number, size))
        self.prune(0)

    def prune(self, oldest: int) -> None:
        pruned = split_kept(self.runs[::-1], self.quotas, oldest)
        self.runs = self.runs[len(self.runs) - pruned.count :]
        self.counts.pruned("ann", pruned.count, pruned.size, len(pruned.forgotten), pruned.forgotten_size)

    def told(self, target: int) -> None:
        def start(count: int) -> bool:
            begun.append(count)
            return True

        begun: list[int] = []
        self.counts.forget("ann", target, start)
        for count in begun:
            self.prune(count)
            self.counts.settled("ann", count)

    def take_over(self, other: AReplica) -> None:
        self.runs += other.runs
        self.heir_of += [other.name, *other.heir_of]
        self.counts.found({"ann": (len(self.runs), sum(size for _, size in self.runs))} if self.runs else {})

    def report(self) -> ReplicaReport:
        return ReplicaReport(
            name=self.name, kept={KEPT_RUNS: dict(self.counts.of)}, heir_of=list(self.heir_of), now=self.clock()
        )


class ACluster:
    def __init__(self, quotas: Quotas, *names: str) -> None:
        self.quotas = quotas
        self.front = KeptShares()
        self.now = 0.0
        self.numbers = itertools.count()
        # Each replica's clock began at another time.
        self.replicas = {
            name: AReplica(name, quotas, clock=partial(self._at, 1000.0 * place)) for place, name in enumerate(names)
        }

    def _at(self, offset: float) -> float:
        return self.now + offset

    def finish(self, name: str, size: int = 1) -> None:
        self.now += 1
        self.replicas[name].finish(next(self.numbers), size)

    def poll(self, *lost: str) -> None:
        self.front.divide(same_for_all(self.quotas))
        for name, replica in self.replicas.items():
            if name not in lost:
                replica.told(self.front.of(name).get(KEPT_RUNS, {}).get("ann", 0))
                self.front.heard(replica.report(), self.now)

    def settle(self) -> None:
        for _ in range(3):
            self.poll()

    def kill(self, name: str, heir: str) -> None:
        self.replicas[heir].take_over(self.replicas.pop(name))

    @property
    def kept(self) -> list[int]:
        return sorted(number for one in self.replicas.values() for number, _ in one.runs)


def test_a_tenant_whose_runs_are_all_on_one_replica_keeps_as_many_as_without_a_cluster() -> None:
    cluster = ACluster(Quotas(kept_runs=20), *"xyz")
    for _ in range(50):
        cluster.finish("x")
        cluster.poll()
    assert cluster.kept == list(range(30, 50))


@given(st.lists(st.tuples(st.sampled_from("xyz"), st.integers(1, 3)), min_size=1, max_size=60), st.integers(1, 20))
@settings(max_examples=examples(100), deadline=None)
def test_the_newest_stay_wherever_they_ran(ended: list[tuple[str, int]], most: int) -> None:
    """``ended``: so many on a replica between two exchanges, within which they are equally old."""
    cluster = ACluster(Quotas(kept_runs=most), *"xyz")
    for name, count in ended:
        for _ in range(count):
            cluster.finish(name)
        cluster.poll()
    cluster.settle()
    total = sum(count for _, count in ended)
    assert cluster.kept == list(range(max(total - most, 0), total))


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("finish"), st.sampled_from("wxyz"), st.integers(0, 40)),
            st.tuples(st.just("kill"), st.sampled_from("xyz"), st.just(0)),
            st.tuples(st.sampled_from(["poll", "lose", "front"]), st.sampled_from("wxyz"), st.just(0)),
        ),
        max_size=60,
    ),
    st.integers(0, 12),
    st.integers(0, 200),
)
@settings(max_examples=examples(300), deadline=None)
def test_whatever_happens_quotas_hold_and_nothing_goes_that_need_not(
    schedule: list[tuple[str, str, int]], most: int, most_size: int
) -> None:
    """Replicas end, reports are lost, another front begins: once all have heard of each other, the quotas are used, and held."""
    cluster = ACluster(Quotas(kept_runs=most, kept_bytes=most_size), *"wxyz")
    for what, name, size in schedule:
        if what == "finish" and name in cluster.replicas:
            cluster.finish(name, size)
        elif what == "kill" and name in cluster.replicas:
            cluster.kill(name, "w")
        elif what == "front":
            cluster.front = KeptShares()
        elif what in ("poll", "lose"):
            cluster.poll(*([name] if what == "lose" else []))
    before = len(cluster.kept)
    cluster.settle()
    kept, size = cluster.kept, sum(size for one in cluster.replicas.values() for _, size in one.runs)
    assert not most or len(kept) <= most
    assert not most_size or size <= most_size or len(kept) == 1
    if not most_size:
        assert len(kept) == (min(before, most) if most else before)


def test_bytes_hold_as_well_within_a_tenth() -> None:
    cluster = ACluster(Quotas(kept_runs=0, kept_bytes=1000), *"xy")
    for number in range(200):
        cluster.finish("xy"[number % 3 == 0], 5 + number % 20)
        cluster.poll()
    cluster.settle()
    size = sum(size for one in cluster.replicas.values() for _, size in one.runs)
    assert 900 <= size <= 1000


def test_what_an_heir_has_taken_over_is_neither_counted_twice_nor_forgotten() -> None:
    cluster = ACluster(Quotas(kept_runs=20), *"xy")
    for name in "xy" * 10:
        cluster.finish(name)
    cluster.settle()
    cluster.kill("x", "y")
    for _ in range(5):
        cluster.poll()
    assert len(cluster.kept) == 20
    cluster.finish("y")
    cluster.settle()
    assert len(cluster.kept) == 20


@pytest.mark.parametrize("names", ["xxxxxxxy", "yyyyyyyx", "xyxyxyxy"])
def test_what_just_ended_is_not_forgotten_for_what_ended_before_in_the_same_exchange(names: str) -> None:
    cluster = ACluster(Quotas(kept_runs=3), *"xy")
    for name in names:
        cluster.finish(name)
    cluster.settle()
    assert 7 in cluster.kept
    assert len(cluster.kept) == 3


def test_without_a_limit_the_front_remembers_no_more_than_there_are_replicas() -> None:
    ledger = KeptLedger()
    for number in range(100):
        ledger.heard("xy"[number % 2], Kept(count=1 + number // 2, size=10 * (1 + number // 2)), float(number))
        ledger.cut(0, 0)
    assert (ledger.count, ledger.size, len(ledger._batches)) == (100, 1000, 2)


@pytest.mark.parametrize("target", [0, 3, 9])
def test_an_order_that_comes_again_forgets_nothing_more(target: int) -> None:
    replica = AReplica("x", LOOSE)
    for number in range(10):
        replica.finish(number, 1)
    for _ in range(3):
        replica.told(target)
    assert [number for number, _ in replica.runs] == list(range(target, 10))
