"""How many runs a front counts: never fewer than there are, and none for ever."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from tiers import examples

from inferd_runtime.cluster.active_runs import ActiveRuns

NAMES = st.sampled_from("xy")


class ACluster(RuleBasedStateMachine):
    """Runs begin, are placed, end, and are reported late; replicas end and leave their runs to the other."""

    def __init__(self) -> None:
        super().__init__()
        self.active, self.now, self.ids = ActiveRuns(), 0.0, 0
        self.begun: list[int] = []
        self.there: dict[str, set[str]] = {"x": set(), "y": set()}

    @rule()
    def begin(self) -> None:
        self.begun.append(self.active.begin("ann"))

    @rule(name=NAMES)
    def place(self, name: str) -> None:
        if self.begun:
            self.ids += 1
            self.now += 1
            self.there[name].add(f"run-{self.ids}")
            self.active.placed(self.begun.pop(), name, self.now)

    @rule()
    def fail(self) -> None:
        if self.begun:
            self.active.drop(self.begun.pop())

    @rule(name=NAMES)
    def end(self, name: str) -> None:
        if self.there[name]:
            self.there[name].pop()

    @rule(name=NAMES)
    def report(self, name: str) -> None:
        self.now += 1
        self.active.heard(name, dict.fromkeys(self.there[name], "ann"), {"ann": len(self.there[name])}, self.now)

    @rule(gone=NAMES)
    def take_over(self, gone: str) -> None:
        heir = "y" if gone == "x" else "x"
        self.there[heir] |= self.there[gone]
        self.there[gone] = set()
        self.report(heir)
        self.active.ended(gone)

    @invariant()
    def no_fewer_than_there_are(self) -> None:
        assert self.active.count("ann") >= sum(map(len, self.there.values())) + len(self.begun)
        assert self.active.count("bob") == 0

    def teardown(self) -> None:
        for name in "xy":
            self.report(name)
        assert self.active.count("ann") == sum(map(len, self.there.values())) + len(self.begun)
        assert self.active.waiting("ann") == sum(map(len, self.there.values()))


def test_a_front_counts_no_fewer_runs_than_there_are_and_all_end() -> None:
    run_state_machine_as_test(
        ACluster, settings=settings(max_examples=examples(100), stateful_step_count=40, deadline=None)
    )


def test_what_any_replica_may_have_got_counts_until_a_report_could_have_it() -> None:
    active = ActiveRuns()
    active.placed(active.begin("ann"), "", at=5.0)
    active.heard("x", {}, {}, asked_at=4.0)
    assert active.count("ann") == 1
    active.heard("x", {"run": "ann"}, Counter(), asked_at=6.0)
    assert active.count("ann") == 1


def test_a_replica_is_told_what_runs_hold_on_the_others_until_an_heir_says_it() -> None:
    active = ActiveRuns()
    active.heard("x", {}, {}, 1.0, {"ann": 5, "bob": 1})
    active.heard("y", {}, {}, 1.0, {"ann": 7})
    active.heard("z", {}, {}, 1.0, {"ann": 2})
    assert active.held_elsewhere("x") == {"ann": 9}
    assert active.held_elsewhere("y") == {"ann": 7, "bob": 1}
    active.ended("z")
    assert active.held_elsewhere("y") == {"ann": 5, "bob": 1}
