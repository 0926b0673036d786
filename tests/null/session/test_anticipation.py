"""Waits for tenants that send one request after the other: they get their share, others keep theirs, and little time is lost."""

from __future__ import annotations

import pytest

from inferd_runtime.engine.scheduling.fairness import LINGER_LEADS, FairClock
from inferd_runtime.session.anticipation import MOST_SECONDS, SHARE, Anticipation

REQUEST = 2e-3
"""What a request takes."""


class Machine:
    """One thread in simulated time. ``serial`` asks again ``pause`` seconds after each answer; ``busy`` always wants steps."""

    def __init__(self, pause: float, step: float) -> None:
        self.now = 0.0
        self.pause, self.step = pause, step
        self.clock: FairClock[str] = FairClock(lambda tenant: 1.0, 2e-3, linger=LINGER_LEADS)
        self.anticipation = Anticipation(self.clock, lambda tenant: tenant == "busy" or self.asked, lambda: self.now)
        self.due = 0.0
        self.answers = self.steps = 0
        self.waited = 0.0

    @property
    def asked(self) -> bool:
        return self.now >= self.due

    def spend(self, tenant: str, seconds: float) -> None:
        self.now += seconds
        self.clock.charge(tenant, seconds)

    def work(self) -> None:
        """Answer what has been asked."""
        while "serial" in self.clock.next_round(["serial"] if self.asked else [], "requests"):
            self.spend("serial", REQUEST)
            self.answers += 1
            self.due = self.now + self.pause

    def wait(self, tenant: str) -> None:
        seconds = min(max(0.0, self.due - self.now), self.anticipation.patience)
        self.now += seconds
        self.waited += seconds
        self.anticipation.waited(tenant, seconds, vain=not self.asked)

    def turn(self, *, waits: bool) -> None:
        self.work()
        while waits and (tenant := self.anticipation.awaited()) is not None:
            self.wait(tenant)
            self.work()
        if self.clock.next_round(["busy"], "steps"):
            self.spend("busy", self.step)
            self.steps += 1

    def run(self, seconds: float, *, waits: bool = True) -> Machine:
        while self.now < seconds:
            self.turn(waits=waits)
        return self


def test_who_asks_for_one_thing_after_the_other_has_its_share_beside_long_steps() -> None:
    alone = 10.0 / (REQUEST + 3e-4)
    assert Machine(3e-4, 20e-3).run(10.0, waits=False).answers < 0.25 * alone
    waited = Machine(3e-4, 20e-3).run(10.0)
    assert waited.answers >= 0.9 * alone / 2
    assert waited.steps * 20e-3 >= 0.45 * 10.0, "and the other one its own"


@pytest.mark.parametrize("pause", [3e-4, 2e-3, 3.9e-3, 6e-3, 1.0])
@pytest.mark.parametrize("step", [5e-4, 4e-3, 20e-3, 0.2])
def test_little_time_goes_into_waiting(pause: float, step: float) -> None:
    machine = Machine(pause, step).run(10.0)
    assert machine.waited <= SHARE * 10.0 + 0.01


def test_nobody_waits_where_steps_are_short() -> None:
    assert not Machine(3e-4, 2e-3).run(1.0).waited


def test_who_was_awaited_in_vain_is_passed_over() -> None:
    machine = Machine(0.06, 20e-3).run(60.0)
    assert machine.waited > 0.1
    assert machine.waited <= machine.answers * MOST_SECONDS / 3, "one pause in four is waited for"


def test_nobody_is_waited_for_that_is_ahead_or_has_nobody_beside_it() -> None:
    machine = Machine(3e-4, 20e-3)
    machine.clock.next_round(["serial", "busy"], "steps")
    machine.clock.charge("busy", 0.02)
    machine.clock.next_round(["busy"], "steps")
    machine.due = 1.0
    machine.clock.charge("serial", 0.001)
    assert machine.anticipation.awaited() == "serial"
    assert machine.anticipation.awaited() is None, "it was not served since"
    machine.clock.charge("serial", 0.1)
    assert machine.anticipation.awaited() is None, "it is ahead"
    machine.clock.charge("busy", 0.2)
    machine.clock.charge("serial", 0.001)
    machine.clock.next_round([], "steps")
    assert machine.anticipation.awaited() is None, "nobody else wants anything"


def behind(machine: Machine, *, step: float) -> None:
    """Have the serial tenant be far behind the busy one, whose last step took so long."""
    machine.due = machine.now + 1.0
    machine.clock.next_round(["serial", "busy"], "steps")
    machine.clock.charge("busy", step)
    machine.clock.next_round(["busy"], "steps")
    machine.clock.charge("serial", 1e-3)


def test_a_wait_is_paid_by_its_tenant_and_bounded_however_long_steps_are() -> None:
    machine = Machine(3e-4, 0.5)
    behind(machine, step=0.5)
    assert machine.anticipation.awaited() == "serial"
    assert machine.anticipation.patience == MOST_SECONDS
    machine.clock.take_given()
    machine.anticipation.waited("serial", 3e-3, vain=False)
    assert machine.clock.take_given() == {"serial": 3e-3}


def test_nobody_is_waited_for_that_has_something_to_run() -> None:
    machine = Machine(3e-4, 20e-3)
    behind(machine, step=0.5)
    machine.due = machine.now
    assert machine.anticipation.awaited() is None


def test_who_floods_is_not_waited_for_by_who_takes_little_at_a_time() -> None:
    """Its own requests take long together; a step of the other one, which they would wait for, does not."""
    machine = Machine(3e-4, 1e-3)
    machine.due = 10.0
    machine.clock.next_round(["serial", "busy"], "steps")
    machine.clock.charge("serial", 0.02)
    machine.clock.charge("busy", 0.1)
    machine.clock.next_round(["busy"], "steps")
    assert machine.anticipation.awaited() == "serial"
    machine.now += 1.0
    machine.clock.charge("serial", 0.02)
    machine.clock.charge("busy", 1e-3)
    assert machine.anticipation.awaited() is None
