"""When a connection is tried again, and how long a message is taken to travel."""

from __future__ import annotations

import random

from hypothesis import given, strategies as st

from inferd_runtime.draft_models.remote.breaker import (
    FIRST_PAUSE,
    HEALTHY_SECONDS,
    LONGEST_PAUSE,
    LinkBreaker,
    LinkState,
    RoundTrip,
)


@given(st.lists(st.tuples(st.floats(0, 3 * HEALTHY_SECONDS), st.booleans()), max_size=60), st.integers(0, 1 << 16))
def test_a_trial_comes_in_bounded_time_whatever_happened(lives: list[tuple[float, bool]], seed: int) -> None:
    breaker, now, pause = LinkBreaker(random.Random(seed)), 100.0, FIRST_PAUSE
    for seconds, answered in lives:
        now += breaker.wait(now)
        assert breaker.state(now) is LinkState.HALF_OPEN
        if answered:
            breaker.connected(now)
            now += seconds
            if seconds >= HEALTHY_SECONDS:
                pause = FIRST_PAUSE
        breaker.failed(now)
        assert 0.0 < breaker.wait(now) <= pause <= LONGEST_PAUSE
        assert breaker.wait(now) >= 0.7 * pause
        assert breaker.state(now) is LinkState.OPEN
        pause = min(LONGEST_PAUSE, 2 * pause)


def test_a_connection_that_lasts_closes_the_breaker_and_one_that_does_not_is_still_on_trial() -> None:
    breaker = LinkBreaker()
    for _ in range(20):
        breaker.failed(0.0)
    assert breaker.wait(0.0) > LONGEST_PAUSE / 2
    breaker.connected(50.0)
    assert breaker.state(51.0) is LinkState.HALF_OPEN
    breaker.failed(51.0)
    assert breaker.wait(51.0) > LONGEST_PAUSE / 2, "the pause is not forgotten"
    breaker.connected(70.0)
    assert breaker.state(70.0 + HEALTHY_SECONDS) is LinkState.CLOSED
    breaker.failed(90.0)
    assert breaker.wait(90.0) <= FIRST_PAUSE


@given(st.lists(st.floats(0, 10), min_size=1, max_size=50))
def test_the_usual_round_trip_is_at_least_the_mean_and_finite(samples: list[float]) -> None:
    travel = RoundTrip()
    assert travel.usual == 0.0
    for sample in samples:
        travel.add(sample)
        assert 0.0 <= travel.usual <= 40.0


def test_a_steady_round_trip_is_learnt_and_an_unsteady_one_is_not_trusted() -> None:
    steady, unsteady, source = RoundTrip(), RoundTrip(), random.Random(0)
    for _ in range(100):
        steady.add(0.05)
        unsteady.add(source.uniform(0.0, 0.2))
    assert 0.05 <= steady.usual < 0.052
    assert unsteady.usual > 0.15
