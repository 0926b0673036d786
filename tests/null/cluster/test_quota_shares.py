"""Quotas over a cluster: whatever the messages do, never more than the quota; once demand is steady, nearly all of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from tiers import examples

from inferd_runtime.cluster.quota_shares import QuotaShare, QuotaUse, SharedQuota, divided, first_share

NAMES = [f"r{at}" for at in range(4)]
LATE = st.frozensets(st.sampled_from(NAMES), max_size=2)
USES = st.dictionaries(st.sampled_from("abcdef"), st.tuples(st.integers(0, 300), st.integers(0, 300)), min_size=1)


@given(total=st.integers(0, 1000), uses=USES)
@settings(max_examples=examples(200))
def test_shares_add_up_and_are_what_is_used_and_more_where_there_is_more(
    total: int, uses: dict[str, tuple[int, int]]
) -> None:
    used = {name: use for name, (use, _) in uses.items()}
    wanted = {name: use + more for name, (use, more) in uses.items()}
    shares = divided(total, used, wanted)
    assert sum(shares.values()) == total
    demand = sum(wanted.values())
    if demand > total:
        assert all(abs(share - total * wanted[name] / demand) < 1 for name, share in shares.items())
    else:
        free = total - sum(used.values())
        assert all(share - used[name] >= max(0.5 * free / len(used) - 1, 0) for name, share in shares.items())


def test_no_replica_no_share() -> None:
    assert divided(5, {}, {}) == {}


@given(total=st.integers(0, 1000), replicas=st.integers(1, 50))
def test_first_shares_are_never_more_than_there_is(total: int, replicas: int) -> None:
    assert replicas * first_share(total, replicas) <= total


@dataclass
class AReplica:
    """Enforces its share alone, and has messages under way in both directions, in any order."""

    share: QuotaShare = field(default_factory=QuotaShare)
    used: int = 0
    refused: int = 0
    down: list[QuotaShare] = field(default_factory=list)
    up: list[QuotaUse] = field(default_factory=list)

    def take(self) -> None:
        if self.used + 1 <= self.share.amount:
            self.used += 1
        else:
            self.refused += 1

    def hear(self, share: QuotaShare) -> None:
        if share.number >= self.share.number:
            self.share = share

    def say(self) -> QuotaUse:
        said = QuotaUse(self.share, self.used, self.used + self.refused)
        self.refused = 0
        return said


class ACluster(RuleBasedStateMachine):
    """Replicas that take and give back; every message may be late, lost, repeated or out of order; replicas end and come."""

    total = 10

    def __init__(self) -> None:
        super().__init__()
        self.quota, self.replicas = SharedQuota(self.total), dict[str, AReplica]()
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
                self.quota.report(name, replica.up[-1])
        self.quota.divide()
        for name, replica in self.replicas.items():
            replica.down.append(self.quota.share_of(name))
            if name not in late_down:
                replica.hear(replica.down[-1])

    @rule(name=st.sampled_from(NAMES), at=st.integers(1, 4))
    def hear_a_late_share(self, name: str, at: int) -> None:
        down = self.replicas[name].down
        self.replicas[name].hear(down[-min(at, len(down))] if down else QuotaShare())

    @rule(name=st.sampled_from(NAMES), at=st.integers(1, 4))
    def hear_a_late_report(self, name: str, at: int) -> None:
        up = self.replicas[name].up
        if up:
            self.quota.report(name, up[-min(at, len(up))])

    @rule(name=st.sampled_from(NAMES))
    def end_and_begin(self, name: str) -> None:
        self.begin(name)

    @rule()
    def another_divider_takes_over(self) -> None:
        self.quota = SharedQuota(self.total)
        for name, replica in self.replicas.items():
            replica.down.clear()
            replica.up.clear()
            self.quota.join(name, replica.say())

    @invariant()
    def never_more_than_the_quota(self) -> None:
        assert sum(replica.used for replica in self.replicas.values()) <= self.quota.held <= self.total


def test_what_is_held_never_exceeds_the_quota_whatever_happens_to_messages() -> None:
    run_state_machine_as_test(
        ACluster, settings=settings(max_examples=examples(100), stateful_step_count=50, deadline=None)
    )


def one(total: int = 10, *names: str) -> SharedQuota:
    quota = SharedQuota(total)
    for name in names:
        quota.join(name)
    return quota


def test_a_report_from_before_a_confirmed_share_is_not_believed() -> None:
    quota = one(10, "a")
    quota.report("a", QuotaUse(QuotaShare(), 0, 5))
    quota.divide()
    assert quota.share_of("a") == QuotaShare(1, 10)
    quota.report("a", QuotaUse(QuotaShare(1, 10), 0, 0))
    quota.join("b")
    quota.report("b", QuotaUse(QuotaShare(), 0, 10))
    quota.divide()
    assert (quota.share_of("a"), quota.share_of("b")) == (QuotaShare(2, 3), QuotaShare())
    quota.report("a", QuotaUse(QuotaShare(), 0, 5))
    assert quota.held == 10


def test_a_share_that_is_not_confirmed_is_sent_again_and_not_changed() -> None:
    quota = one(10, "a")
    quota.divide()
    first = quota.share_of("a")
    quota.join("b")
    quota.report("b", QuotaUse(QuotaShare(), 0, 100))
    quota.divide()
    assert (quota.share_of("a"), quota.share_of("b")) == (first, QuotaShare())
    quota.report("a", QuotaUse(first, 4, 4))
    quota.divide()
    lowered = quota.share_of("a")
    assert lowered.amount < first.amount
    assert quota.share_of("b") == QuotaShare()
    quota.report("a", QuotaUse(lowered, 4, 4))
    quota.divide()
    assert quota.share_of("b") == QuotaShare(1, 6), "what is in use is given to nobody"


def test_a_divider_takes_over_the_shares_of_another() -> None:
    quota = one(10, "a", "b")
    quota.report("a", QuotaUse(QuotaShare(7, 9), 9, 9))
    quota.divide()
    assert quota.share_of("a").number >= 7
    assert quota.held <= 10


@given(
    total=st.integers(20, 500), demand=st.lists(st.integers(0, 600), min_size=4, max_size=4), shift=st.integers(0, 3)
)
@settings(max_examples=examples(100), deadline=None)
def test_steady_demand_gets_nine_tenths_of_the_quota_wherever_it_moves(
    total: int, demand: list[int], shift: int
) -> None:
    quota, replicas = one(total, *NAMES), {name: AReplica() for name in NAMES}
    for wanted in (demand, demand[shift:] + demand[:shift]):
        for _ in range(12):
            for replica, most in zip(replicas.values(), wanted, strict=True):
                replica.used = min(replica.used, most)
                for _ in range(most - replica.used):
                    replica.take()
            exchange(quota, replicas)
    used = sum(replica.used for replica in replicas.values())
    assert used >= 0.9 * min(total, sum(demand)) - len(NAMES)


def exchange(quota: SharedQuota, replicas: Mapping[str, AReplica]) -> None:
    for name, replica in replicas.items():
        quota.report(name, replica.say())
    quota.divide()
    for name, replica in replicas.items():
        replica.hear(quota.share_of(name))
