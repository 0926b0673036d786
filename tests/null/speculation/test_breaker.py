"""Breakers: they open on what does not pay, and always come back."""

from __future__ import annotations

from hypothesis import given, strategies as st

from inferd_runtime.speculation.breaker import MOST_CREDIT, MOST_GUESSES, SHARE, STAKE, EngineBreaker, SourceBreaker

FAIL = 0.5
"""The gain of a draft that costs one plain step and brings nothing."""
WORTH = 3.0
ROWS = [0.25 * rows for rows in range(17)]
"""What drafts of so many rows cost."""


def rested() -> SourceBreaker:
    breaker = SourceBreaker()
    breaker.report(FAIL)
    assert not breaker.affords(ROWS)
    return breaker


def guesses_until_it_drafts(breaker: SourceBreaker) -> int:
    count = 0
    while not breaker.affords(ROWS):
        breaker.guessed(True)
        count += 1
    return count


def test_guesses_that_would_have_been_right_turn_it_on_and_each_time_it_takes_more_of_them() -> None:
    breaker, wanted = rested(), []
    for _ in range(7):
        wanted.append(guesses_until_it_drafts(breaker))
        breaker.report(FAIL)
    assert wanted == [1, 2, 4, 8, 16, MOST_GUESSES, MOST_GUESSES]


def test_once_it_has_paid_one_right_guess_is_enough_again() -> None:
    breaker = rested()
    for _ in range(3):
        guesses_until_it_drafts(breaker)
        breaker.report(FAIL)
    guesses_until_it_drafts(breaker)
    breaker.report(WORTH)
    while breaker.affords(ROWS):
        breaker.report(FAIL)
    assert guesses_until_it_drafts(breaker) == 1


def test_right_guesses_have_to_come_one_after_the_other() -> None:
    breaker = rested()
    guesses_until_it_drafts(breaker)
    breaker.report(FAIL)
    for right in (True, False, True):
        breaker.guessed(right)
        assert not breaker.affords(ROWS)
    breaker.guessed(True)
    assert breaker.affords(ROWS)


def test_old_wins_do_not_pay_for_more_than_so_many_losses() -> None:
    breaker = SourceBreaker()
    for _ in range(1000):
        breaker.report(WORTH)
    losses = 0
    while breaker.affords(ROWS):
        breaker.report(FAIL)
        losses += 1
    assert losses == MOST_CREDIT


@given(st.floats(0.01, 1.5), st.integers(1, 400))
def test_a_source_that_is_always_wrong_costs_a_request_its_share_of_the_time(row: float, tokens: int) -> None:
    """Short requests are where a source that served others well, and is wrong here, cost a tenth of the time."""
    breaker, lost = SourceBreaker(tokens), 0.0
    for _ in range(tokens):
        rows = breaker.affords([row * count for count in range(17)])
        if rows:
            lost += rows * row
            breaker.report(1 / (1 + rows * row))
        else:
            breaker.guessed(False)
    assert lost <= min(STAKE, SHARE * tokens) + 1e-9


@given(st.lists(st.floats(0.01, 20.0), max_size=400), st.floats(0.01, 1.5))
def test_a_draft_has_no_more_rows_than_its_account_pays_for(gains: list[float], row: float) -> None:
    breaker, account = SourceBreaker(), STAKE
    for gain in gains:
        assert breaker.affords([row * count for count in range(17)]) * row <= max(0.0, account) + 1e-9
        account = min(MOST_CREDIT, account + (gain - 1 if gain >= 1 else 1 - 1 / gain))
        breaker.report(gain)


@given(st.lists(st.one_of(st.floats(0.01, 20.0), st.booleans()), max_size=300))
def test_a_source_that_comes_to_be_right_is_always_tried_again(events: list[float | bool]) -> None:
    breaker = SourceBreaker()
    for event in events:
        breaker.guessed(event) if isinstance(event, bool) else breaker.report(event)
    assert guesses_until_it_drafts(breaker) <= MOST_GUESSES


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
