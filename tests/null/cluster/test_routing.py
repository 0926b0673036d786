"""Where runs start: a session stays, a run never moves, no replica is far busier than the idlest, none starves."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from tiers import examples

from inferd.protocol import Unavailable
from inferd_runtime.cluster.prefixes import BLOCK_BYTES, MOST_BLOCKS, PrefixTable, prefix_blocks
from inferd_runtime.cluster.routing import (
    ClusterRouter,
    ReplicaLoad,
    RoutedRun,
    RouteReason,
    RoutingRule,
    RunStart,
    choose,
)

REPLICAS = st.sampled_from([f"r{at}" for at in range(5)])
TENANTS = st.sampled_from(["ann", "bob"])
SESSIONS = st.none() | st.sampled_from([f"s{at}" for at in range(8)])
PROMPTS = st.lists(st.sampled_from("abc"), max_size=4).map(lambda parts: [part * BLOCK_BYTES for part in parts])


class ARouter(RuleBasedStateMachine):
    """A router beside what it should know, and a second one that gets the same calls."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.twin = ClusterRouter(), ClusterRouter()
        self.runs: dict[str, str] = {}
        self.homes: dict[tuple[str, str], str] = {}
        self.takes: set[str] = set()
        self.started = 0

    @rule(replica=REPLICAS)
    def join(self, replica: str) -> None:
        for router in (self.router, self.twin):
            router.join(replica)
        self.takes.add(replica)

    @rule(replica=REPLICAS)
    def drain(self, replica: str) -> None:
        for router in (self.router, self.twin):
            router.drain(replica)
        self.takes.discard(replica)
        self.homes = {session: home for session, home in self.homes.items() if home != replica}

    @rule(replica=REPLICAS)
    def pause(self, replica: str) -> None:
        for router in (self.router, self.twin):
            router.pause(replica)
        self.takes.discard(replica)

    @rule(replica=REPLICAS)
    def leave(self, replica: str) -> None:
        lost = [run for run, where in self.runs.items() if where == replica]
        assert list(self.router.leave(replica)) == lost == list(self.twin.leave(replica))
        self.takes.discard(replica)
        self.runs = {run: where for run, where in self.runs.items() if where != replica}
        self.homes = {session: home for session, home in self.homes.items() if home != replica}

    @precondition(lambda self: not self.takes)
    @rule(tenant=TENANTS, session=SESSIONS)
    def start_nowhere(self, tenant: str, session: str | None) -> None:
        with pytest.raises(Unavailable):
            self.router.start(RunStart("nowhere", tenant, session))

    @precondition(lambda self: self.takes)
    @rule(tenant=TENANTS, session=SESSIONS, prompt=PROMPTS)
    def start(self, tenant: str, session: str | None, prompt: list[str]) -> None:
        self.started += 1
        wanted = RunStart(f"run-{self.started}", tenant, session, prefix_blocks((tenant, "chat"), prompt))
        fewest = min(self.router.loads[name] for name in self.takes)
        routed = self.router.start(wanted)
        assert routed == self.twin.start(wanted) == self.router.start(wanted)
        assert routed.replica in self.takes
        home = self.homes.get((tenant, session)) if session is not None else None
        home = home if home in self.takes else None
        assert (routed.reason == RouteReason.SESSION) == (home is not None)
        if home is not None:
            assert routed.replica == home
        else:
            assert self.router.loads[routed.replica] <= self.router.rule.most(fewest)
        self.runs[wanted.run] = routed.replica
        if session is not None:
            self.homes[tenant, session] = routed.replica

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        run = data.draw(st.sampled_from(sorted(self.runs)))
        for router in (self.router, self.twin):
            router.end(run)
        del self.runs[run]

    @invariant()
    def a_run_never_moves_and_is_counted_once(self) -> None:
        assert {run: self.router.replica_of(run) for run in self.runs} == self.runs
        assert Counter({name: runs for name, runs in self.router.loads.items() if runs}) == Counter(self.runs.values())


def test_sessions_stay_runs_never_move_and_loads_are_bounded_whatever_joins_and_leaves() -> None:
    run_state_machine_as_test(
        ARouter, settings=settings(max_examples=examples(100), stateful_step_count=40, deadline=None)
    )


@given(replicas=st.integers(1, 12), prompts=st.lists(st.tuples(TENANTS, PROMPTS), min_size=60, max_size=120))
@settings(max_examples=examples(40), deadline=None)
def test_no_replica_starves_and_none_is_far_busier_than_another(
    replicas: int, prompts: list[tuple[str, list[str]]]
) -> None:
    router = ClusterRouter()
    for at in range(replicas):
        router.join(f"r{at}")
    for at, (tenant, prompt) in enumerate(prompts):
        router.start(RunStart(str(at), tenant, None, prefix_blocks((tenant,), prompt)))
        fewest, most = min(router.loads.values()), max(router.loads.values())
        assert most <= router.rule.most(fewest)
        assert fewest > 0 or at + 1 <= (replicas - 1) * router.rule.slack


@given(lost=REPLICAS, sessions=st.lists(st.tuples(TENANTS, st.text(max_size=5)), min_size=1, max_size=60, unique=True))
@settings(max_examples=examples(100), deadline=None)
def test_losing_a_replica_moves_its_own_sessions_alone(lost: str, sessions: list[tuple[str, str]]) -> None:
    router = ClusterRouter()
    for at in range(5):
        router.join(f"r{at}")
    before = {session: router.start(RunStart(repr(session), *session)).replica for session in sessions}
    router.leave(lost)
    after = {session: router.start(RunStart(repr(session) + "again", *session)).replica for session in sessions}
    assert all(after[session] == home for session, home in before.items() if home != lost)
    assert lost not in after.values()


def test_runs_without_anything_in_common_take_turns() -> None:
    router = ClusterRouter()
    for at in range(7):
        router.join(f"r{at}")
    used = []
    for at in range(14):
        used.append(router.start(RunStart(str(at))).replica)
        router.end(str(at))
    assert Counter(used) == {f"r{at}": 2 for at in range(7)}


def test_a_beginning_that_everybody_uses_spreads_once_its_replicas_are_busy() -> None:
    router, blocks = ClusterRouter(RoutingRule(slack=2, factor=1)), prefix_blocks(("ann",), ["x" * 2 * BLOCK_BYTES])
    router.join("a")
    router.join("b")
    reasons = [router.start(RunStart(str(at), "ann", None, blocks)).reason for at in range(5)]
    assert reasons == ["load", "prefix", "override", "prefix", "prefix"]
    assert router.loads == {"a": 3, "b": 2}


def test_the_longest_known_beginning_wins_and_a_shorter_one_is_better_than_none() -> None:
    loads = {"a": ReplicaLoad(3, 1), "b": ReplicaLoad(0, 2), "c": ReplicaLoad(0, 3)}
    assert choose(None, [["a", "b"], ["a"]], loads, RoutingRule()) == RoutedRun("a", RouteReason.PREFIX, 2)
    assert choose(None, [["a", "b"], ["a"]], loads, RoutingRule(slack=3)) == RoutedRun("b", RouteReason.PREFIX, 1)
    assert choose(None, [["gone"]], loads, RoutingRule()) == RoutedRun("b", RouteReason.LOAD)


def test_sessions_of_one_tenant_do_not_push_out_anothers() -> None:
    router = ClusterRouter(RoutingRule(sessions_per_tenant=2))
    for at in range(6):
        router.join(f"r{at}")
    home = router.start(RunStart("first", "ann", "kept")).replica
    router.end("first")
    for at in range(50):
        router.start(RunStart(str(at), "eve", str(at)))
        router.end(str(at))
    assert router.start(RunStart("second", "ann", "kept")) == RoutedRun(home, RouteReason.SESSION)
    assert router.start(RunStart("new", "eve", "0")).reason == RouteReason.LOAD


def test_a_draining_replica_keeps_its_runs_and_gets_no_more() -> None:
    router = ClusterRouter()
    router.join("a")
    router.start(RunStart("1", "ann", "s"))
    router.join("b")
    router.drain("a")
    assert router.replica_of("1") == "a"
    assert {router.start(RunStart(f"more-{at}", "ann", "s")).replica for at in range(9)} == {"b"}


def test_a_router_that_takes_over_knows_runs_and_sessions() -> None:
    router = ClusterRouter()
    router.start_on(RunStart("1", "ann", "s"), "a")
    router.start_on(RunStart("1", "ann", "s"), "b")
    router.join("b")
    assert router.loads == {"a": 1, "b": 0}
    assert router.start(RunStart("2", "ann", "s")) == RoutedRun("a", RouteReason.SESSION)


@given(first=st.lists(st.text(max_size=600), max_size=4), more=st.text(max_size=2000))
@settings(max_examples=examples(100), deadline=None)
def test_equal_beginnings_have_equal_hashes_and_other_owners_none_in_common(first: list[str], more: str) -> None:
    blocks, longer = prefix_blocks(("ann", "chat"), first), prefix_blocks(("ann", "chat"), [*first, more])
    assert longer[: len(blocks)] == blocks
    assert len(longer) <= MOST_BLOCKS
    assert not set(longer) & set(prefix_blocks(("annc", "hat"), [*first, more]))
    assert len(set(longer)) == len(longer)


def test_another_beginning_has_other_hashes_from_there_on() -> None:
    text = "x" * BLOCK_BYTES
    one, two = prefix_blocks((), [text, "a" * BLOCK_BYTES]), prefix_blocks((), [text, "b" * BLOCK_BYTES])
    assert one[:2] == two[:2]
    assert not set(one[2:]) & set(two[2:])


def test_a_lone_surrogate_and_a_very_long_prompt_are_hashed_like_any_other() -> None:
    assert len(prefix_blocks(("ann\ud800",), ["\ud800" * BLOCK_BYTES])) > 1
    assert len(prefix_blocks((), ["x" * 10_000_000] * 3)) == MOST_BLOCKS


def test_a_replicas_newest_blocks_are_remembered_and_of_a_run_its_first() -> None:
    table = PrefixTable(3)
    table.note("a", [b"1", b"2"])
    table.note("a", [b"1", b"3", b"4"])
    table.note("b", [b"1"])
    assert [list(table.holders(block)) for block in (b"1", b"2", b"3", b"4")] == [["a", "b"], [], ["a"], ["a"]]
    table.note("a", [b"5", b"6", b"7", b"8"])
    assert [list(table.holders(block)) for block in (b"1", b"5", b"7", b"8")] == [["b"], ["a"], ["a"], []]
    table.drop("a")
    assert (len(table), list(table.holders(b"5"))) == (1, [])


def test_a_replica_that_comes_back_has_an_empty_cache() -> None:
    router, blocks = ClusterRouter(), prefix_blocks(("ann",), [])
    router.join("a")
    router.start(RunStart("1", "ann", None, blocks))
    router.leave("a")
    router.join("a")
    assert router.start(RunStart("2", "ann", None, blocks)).reason == RouteReason.LOAD


def test_the_session_that_was_unused_for_longest_is_forgotten_first() -> None:
    router = ClusterRouter(RoutingRule(sessions_per_tenant=2))
    router.join("a")
    for at, session in enumerate(["old", "used", "old", "new"]):
        router.start(RunStart(str(at), "ann", session))
        router.end(str(at))
    assert router.start(RunStart("again", "ann", "old")).reason == RouteReason.SESSION
    assert router.start(RunStart("gone", "ann", "used")).reason == RouteReason.LOAD
