"""Which steps wait for programs that are about to answer, and who is not waited for."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from hand_clock import HandClock

from inferd_runtime.session.generation.program_turns import SHARE_BESIDE_OTHERS, ProgramTurns

STEP = 0.1


@dataclass(eq=False)
class Job:
    tenant: str = "ann"
    over: bool = False
    runs_on: bool = False
    context: Any = field(init=False)

    def __post_init__(self) -> None:
        self.context = SimpleNamespace(tenant=self.tenant)

    def finished(self) -> bool:
        return self.over


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def turns(clock: HandClock) -> ProgramTurns:
    made = ProgramTurns(clock)
    made.stepped(STEP)
    return made


def begun(turns: ProgramTurns, *jobs: Any) -> None:
    for job in jobs:
        turns.begin(job)


def test_a_step_waits_until_all_programs_have_answered(turns: ProgramTurns) -> None:
    jobs: list[Any] = [Job("ann"), Job("bob"), Job("eve")]
    begun(turns, *jobs)
    assert turns.waited_for(3) == []  # nobody could run
    turns.answered(jobs[0])
    assert turns.waited_for(3) == ["bob", "eve"]
    turns.answered(jobs[2])
    assert turns.waited_for(3) == ["bob"]
    turns.answered(jobs[1])
    assert turns.waited_for(3) == []


@pytest.mark.parametrize(("others", "share"), [(0, 1.0), (1, SHARE_BESIDE_OTHERS)])
def test_nobody_waits_longer_than_it_is_worth(turns: ProgramTurns, clock: HandClock, others: int, share: float) -> None:
    slow, quick = jobs = [Job(), Job()]
    begun(turns, *jobs)
    turns.answered(quick)  # type: ignore[arg-type]
    clock.now += 0.99 * share * STEP
    assert turns.waited_for(2 + others)
    clock.now += 0.02 * share * STEP
    assert not turns.waited_for(2 + others)
    clock.now += STEP
    turns.answered(slow)  # type: ignore[arg-type]
    for job in jobs:
        turns.asked(job)  # type: ignore[arg-type]
    turns.answered(quick)  # type: ignore[arg-type]
    assert not turns.waited_for(2 + others)  # it was late
    turns.answered(slow)  # type: ignore[arg-type]
    for job in jobs:
        turns.asked(job)  # type: ignore[arg-type]
    turns.answered(quick)  # type: ignore[arg-type]
    assert turns.waited_for(2 + others)  # it was in time again


def test_who_ended_is_not_waited_for(turns: ProgramTurns) -> None:
    ended, closed, _ = jobs = [Job(), Job(), Job()]
    begun(turns, *jobs)
    for job in jobs:
        turns.answered(job)  # type: ignore[arg-type]
    ended.over = True
    turns.asked(ended)  # type: ignore[arg-type]
    turns.asked(closed)  # type: ignore[arg-type]
    turns.end(closed)  # type: ignore[arg-type]
    assert not turns.waited_for(2)
    turns.asked(closed)  # type: ignore[arg-type]
    assert not turns.waited_for(2)


def test_who_runs_on_without_its_program_is_not_waited_for(turns: ProgramTurns, clock: HandClock) -> None:
    silent, _ = jobs = [Job(), Job("bob")]
    begun(turns, *jobs)
    for job in jobs:
        turns.answered(job)  # type: ignore[arg-type]
    silent.runs_on = True
    for job in jobs:
        turns.asked(job)  # type: ignore[arg-type]
    assert turns.waited_for(2) == ["bob"]
    clock.now += 0.5 * STEP  # more than it is worth beside one that could run
    assert turns.waited_for(2) == []


def test_a_generation_that_asks_no_program_is_none(turns: ProgramTurns) -> None:
    turns.asked(Job())  # type: ignore[arg-type]
    assert not turns.waited_for(5)
