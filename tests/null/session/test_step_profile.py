"""Steps are profiled while somebody asks for a slow one, and cost nothing otherwise."""

from __future__ import annotations

import sys

import pytest
from hand_clock import HandClock

from inferd_runtime.session.step_profile import ASKED_SECONDS, StepProfile


def step() -> bool:
    return sys.getprofile() is None


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


def test_nothing_is_profiled_unless_somebody_asks(clock: HandClock) -> None:
    profile = StepProfile(clock)
    assert profile.run("m", lambda: 1, step)
    assert profile.read(0.0) is None
    assert profile.run("m", lambda: 3, lambda: sum(range(1000)) > 0)
    found = profile.read(0.0)
    assert found is not None
    assert (found.model, found.jobs) == ("m", 3)
    assert any("sum" in one.function and one.calls == 1 for one in found.functions)
    assert profile.read(0.0) is None
    clock.now += ASKED_SECONDS
    profile.run("m", lambda: 1, step)
    assert profile.read(0.0) is None


def test_a_step_that_is_fast_enough_is_not_kept(clock: HandClock) -> None:
    profile = StepProfile(clock)
    profile.read(1e6)
    profile.run("m", lambda: 1, step)
    assert profile.read(1e6) is None


def test_what_a_step_raises_passes_through(clock: HandClock) -> None:
    profile = StepProfile(clock)
    profile.read(0.0)
    with pytest.raises(ZeroDivisionError):
        profile.run("m", lambda: 1, lambda: bool(1 // 0))
    assert sys.getprofile() is None
