"""Breakers: they open on what does not pay, and always come back."""

from __future__ import annotations

from hypothesis import given, strategies as st

from inferd_runtime.speculation.breaker import (
    CREDIT,
    FIRST_WAIT,
    LONG_MATCH,
    MOST_CREDIT,
    RIGHT_GUESSES,
    EngineBreaker,
    SourceBreaker,
)

FAIL = 0.5
WORTH = 3.0


def opened() -> SourceBreaker:
    breaker = SourceBreaker()
    for _ in range(100):
        if not breaker.on:
            return breaker
        breaker.report(FAIL)
    raise AssertionError("it never opened")


def steps_until_allowed(breaker: SourceBreaker, match: int = 2) -> int:
    return next(step for step in range(1, 10_000) if breaker.try_draft(match))


def test_a_source_that_loses_rests_and_is_tried_ever_more_rarely() -> None:
    breaker = opened()
    waits = []
    for _ in range(4):
        waits.append(steps_until_allowed(breaker))
        breaker.report(FAIL)
    assert waits == [FIRST_WAIT, 2 * FIRST_WAIT, 4 * FIRST_WAIT, 8 * FIRST_WAIT]


def test_a_trial_stays_open_until_it_was_reported() -> None:
    breaker = opened()
    steps_until_allowed(breaker)
    assert breaker.try_draft(0)
    breaker.report(FAIL)
    assert not breaker.try_draft(0)


def test_one_trial_that_pays_turns_it_on_and_the_next_rest_is_short_again() -> None:
    breaker = opened()
    steps_until_allowed(breaker)
    breaker.report(FAIL)
    steps_until_allowed(breaker)
    breaker.report(WORTH)
    assert breaker.on
    while breaker.on:
        breaker.report(FAIL)
    assert steps_until_allowed(breaker) == FIRST_WAIT


def test_guesses_that_would_have_been_right_turn_it_on_and_each_time_it_takes_more_of_them() -> None:
    breaker = opened()
    wanted = []
    for _ in range(3):
        guesses = 0
        while not breaker.on:
            breaker.guessed(True)
            guesses += 1
        wanted.append(guesses)
        while breaker.on:
            breaker.report(FAIL)
    assert wanted == [RIGHT_GUESSES, 2 * RIGHT_GUESSES, 4 * RIGHT_GUESSES]
    for _ in range(8 * RIGHT_GUESSES):
        breaker.guessed(True)
    breaker.report(WORTH)  # it pays: next time a few are enough again
    while breaker.on:
        breaker.report(FAIL)
    for right in (True, False, True):
        breaker.guessed(right)
        assert not breaker.on
    breaker.guessed(True)
    assert breaker.on


def test_a_long_match_need_not_wait() -> None:
    breaker = opened()
    assert not breaker.try_draft(LONG_MATCH - 1)
    assert breaker.try_draft(LONG_MATCH)
    breaker.report(WORTH)
    assert breaker.try_draft(0)


def test_long_matches_that_fail_wait_too_but_less() -> None:
    breaker = opened()
    waits = []
    for _ in range(5):
        waits.append(steps_until_allowed(breaker, LONG_MATCH))
        breaker.report(FAIL)
    assert waits == [1, 2, 4, 8, 16]


def test_old_wins_do_not_pay_for_more_than_so_many_losses() -> None:
    breaker = SourceBreaker()
    for _ in range(1000):
        breaker.report(WORTH)
    losses = 0
    while breaker.on:
        breaker.report(FAIL)
        losses += 1
    assert losses == MOST_CREDIT + 1


def test_a_source_that_is_wrong_from_the_start_costs_three_steps_at_most() -> None:
    """Short requests are where a source that served others well, and is wrong here, would cost a tenth of the time."""
    breaker, lost = SourceBreaker(), 0.0
    for _ in range(80):
        if breaker.try_draft(2):
            lost += 1 if breaker.on else 0.15  # a trial is short
            breaker.report(0.5)
    assert lost < 3


@given(st.lists(st.floats(0.01, 20.0), max_size=400))
def test_while_it_is_on_a_source_never_costs_more_than_its_account(gains: list[float]) -> None:
    breaker, account = SourceBreaker(), CREDIT
    for gain in gains:
        if breaker.on:
            account = min(MOST_CREDIT, account + (gain - 1 if gain >= 1 else 1 - 1 / gain))
            breaker.report(gain)
            assert breaker.on == (account >= 0)
            if not breaker.on:
                return


@given(st.lists(st.one_of(st.floats(0.01, 20.0), st.none()), max_size=300), st.integers(0, 20))
def test_a_source_is_always_tried_again(events: list[float | None], match: int) -> None:
    breaker = SourceBreaker()
    for gain in events:
        if gain is None:
            breaker.try_draft(match)
        else:
            breaker.report(gain)
    assert steps_until_allowed(breaker, match) <= 4096
    breaker.report(WORTH)
    assert breaker.on


class Engine:
    """Steps of a batch whose drafts bring ``tokens`` times as much in ``time`` times the time."""

    def __init__(self) -> None:
        self.breaker = EngineBreaker()

    def run(self, steps: int, tokens: float, time: float, slowness: float = 1.0) -> int:
        """How many of so many steps drafted."""
        drafted = 0
        for _ in range(steps):
            if self.breaker.try_draft() and not self.breaker.wants_control:
                drafted += 1
                self.breaker.drafted(tokens, time * slowness)
            else:
                self.breaker.plain(slowness)
        return drafted


def test_drafting_that_pays_goes_on_and_about_one_step_in_a_hundred_goes_without() -> None:
    engine = Engine()
    assert 9850 <= engine.run(10_000, 1.2, 1.1) < 10_000
    assert engine.breaker.state == "closed"
    assert engine.breaker.trips == 0


def test_the_more_drafting_brings_the_rarer_it_goes_without() -> None:
    engine = Engine()
    assert engine.run(10_000, 8.0, 1.0) > 9970


def test_drafting_that_loses_stops_for_the_whole_engine() -> None:
    engine = Engine()
    engine.run(2000, 1.0, 1.1)
    assert engine.breaker.state == "open"
    assert engine.run(20_000, 1.0, 1.1) < 1000


def test_one_bad_window_is_not_enough() -> None:
    breaker = EngineBreaker()
    for _ in range(EngineBreaker.CONTROLS):
        breaker.plain(1.0)
    for time in (1.2, 0.9, 1.2, 0.9):
        for _ in range(EngineBreaker.WINDOW):
            breaker.drafted(1.0, time)
    assert breaker.trips == 0


def test_drafts_that_pass_while_it_is_open_judge_nothing() -> None:
    engine = Engine()
    engine.run(2000, 1.0, 1.1)
    trips = engine.breaker.trips
    for _ in range(1000):
        engine.breaker.drafted(1.0, 1.1)
    assert (engine.breaker.state, engine.breaker.trips) == ("open", trips)


def test_two_percent_are_borne() -> None:
    engine = Engine()
    engine.run(5000, 1.0, 1.01)
    assert engine.breaker.trips == 0


def test_a_device_that_is_slow_in_all_steps_trips_nothing() -> None:
    engine = Engine()
    engine.run(5000, 1.1, 1.0, slowness=1.5)
    assert engine.breaker.trips == 0


def test_it_comes_back_when_drafting_pays_again() -> None:
    engine = Engine()
    engine.run(4000, 1.0, 1.2)
    assert engine.breaker.state == "open"
    assert engine.run(4000, 3.0, 1.1) > 1000
    assert engine.breaker.state == "closed"


def test_without_anything_to_compare_with_it_never_opens() -> None:
    breaker = EngineBreaker()
    for _ in range(1000):
        breaker.drafted(1.0, 2.0)
    assert breaker.state == "closed"


@given(st.lists(st.tuples(st.floats(1.0, 17.0), st.floats(0.1, 20.0)), max_size=600))
def test_whatever_happens_it_is_tried_again(steps: list[tuple[float, float]]) -> None:
    breaker = EngineBreaker()
    for tokens, slowness in steps:
        if breaker.try_draft():
            breaker.drafted(tokens, slowness)
        else:
            breaker.plain(1.0)
    waited = next(step for step in range(20_000) if breaker.try_draft() or breaker.plain(1.0))
    assert waited <= EngineBreaker.LONGEST_PAUSE
