"""Step times: the profile between its points, and what experience does to it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from inferd_runtime.speculation.times import Profile, StepShape, StepTimes, divisible, monotone

SEQUENCES = (1, 4, 16)
ROWS = (1, 2, 5, 9)


def measured(step: float = 1e-3, row: float = 1e-4, **more: float) -> StepTimes:
    seconds = [[step + row * sequences * rows for rows in ROWS] for sequences in SEQUENCES]
    return StepTimes(Profile(SEQUENCES, ROWS, np.asarray(seconds), **more))


@given(st.integers(1, 300), st.integers(1, 20), st.integers(0, 40))
def test_linear_is_linear(sequences: int, each: int, extra: int) -> None:
    times = StepTimes.linear(2.0, 0.25)
    rows = sequences * each
    expected = 2.0 + 0.25 * (rows + np.arange(extra + 1))
    assert times.times(StepShape(sequences, rows, 500), extra) == pytest.approx(expected)


@given(st.integers(1, 40), st.integers(1, 30))
def test_between_and_beyond_its_points_a_profile_is_straight(sequences: int, each: int) -> None:
    shape = StepShape(sequences, sequences * each, 0)
    assert measured().time(shape) == pytest.approx(1e-3 + 1e-4 * shape.rows)


def test_context_is_read_by_the_sequence_and_again_by_its_further_rows() -> None:
    times = measured(context=1e-6, reread=1e-7)
    base = measured().time(StepShape(2, 6, 0))
    assert times.time(StepShape(2, 6, 1000)) == pytest.approx(base + 1e-3 + 1e-4 * 2)


def test_a_tree_costs_what_was_measured() -> None:
    times = measured(tree=5e-4)
    assert times.time(StepShape(4, 8, 0, 3)) == pytest.approx(times.time(StepShape(4, 8, 0)) + 1.5e-3)


@given(st.lists(st.lists(st.floats(1e-4, 1.0), min_size=4, max_size=4), min_size=1, max_size=4))
def test_more_work_never_takes_less_time(table: list[list[float]]) -> None:
    seconds = np.asarray(table)
    smooth = monotone(seconds)
    assert np.all(np.diff(smooth, axis=0) >= 0)
    assert np.all(np.diff(smooth, axis=1) >= 0)
    assert seconds.min() <= smooth.min() <= smooth.max() <= seconds.max()


def test_what_is_monotone_stays_as_it_is() -> None:
    seconds = np.asarray([[1.0, 2.0, 3.0], [1.5, 2.5, 4.0]])
    assert np.array_equal(monotone(seconds), seconds)


def test_a_disturbed_measurement_is_no_worse_than_steps_one_after_another() -> None:
    seconds = np.asarray([[1.0, 20.0, 1.5], [1.2, 1.4, 30.0]])
    assert StepTimes(Profile((1, 4), (1, 2, 4), seconds)).time(StepShape(1, 2, 0)) < 2
    assert divisible(Profile((1, 4), (1, 2, 4), seconds)) == pytest.approx(
        np.asarray([[1.0, 2.0, 1.5], [1.2, 1.4, 2.8]])
    )


def test_it_learns_that_the_device_became_slower_everywhere() -> None:
    times, shape, other = measured(), StepShape(1, 1, 0), StepShape(16, 32, 0)
    before = times.time(other)
    for _ in range(100):
        times.learn(shape, 2.2e-3)
    assert times.time(shape) == pytest.approx(2.2e-3, rel=0.02)
    assert times.time(other) > 1.5 * before


def test_it_learns_that_rows_cost_more_than_measured() -> None:
    times, plain, wide = measured(), StepShape(1, 1, 0), StepShape(1, 9, 0)
    for _ in range(300):
        times.learn(plain, 1.1e-3)
        times.learn(wide, 3.8e-3)
    assert times.time(plain) == pytest.approx(1.1e-3, rel=0.1)
    assert times.time(wide) == pytest.approx(3.8e-3, rel=0.1)


def test_one_interrupted_step_hardly_moves_it() -> None:
    times, shape = measured(), StepShape(1, 2, 0)
    before = times.time(shape)
    times.learn(shape, 1e3)
    assert times.time(shape) < 1.2 * before


def test_what_was_learnt_about_a_point_is_forgotten_where_nothing_comes() -> None:
    times, plain, wide = measured(), StepShape(1, 1, 0), StepShape(1, 9, 0)
    before = times.time(wide) / times.time(plain)
    for _ in range(200):
        times.learn(wide, 3.8e-3)
        times.learn(plain, 1.1e-3)
    learnt = times.time(wide) / times.time(plain)
    for _ in range(8000):
        times.learn(plain, 1.1e-3)
    assert before <= times.time(wide) / times.time(plain) < before + (learnt - before) / 4


def test_a_prompt_says_nothing_about_decode_steps() -> None:
    times, shape = measured(), StepShape(1, 2, 0)
    before = times.time(shape)
    times.learn(StepShape(1, 512, 512), 1e-9)
    assert times.time(shape) == before


def test_linear_times_learn_nothing() -> None:
    times, shape = StepTimes.linear(1.0, 0.01), StepShape(3, 3, 0)
    before = times.time(shape)
    times.learn(shape, 7.0)
    assert times.time(shape) == before


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(1, 12), st.floats(1e-5, 1.0)), max_size=20))
def test_whatever_it_learns_it_stays_monotone_and_finite(steps: list[tuple[int, int, float]]) -> None:
    times = measured()
    for sequences, each, seconds in steps:
        times.learn(StepShape(sequences, sequences * each, 0), seconds)
    shape = StepShape(4, 4, 100)
    curve = times.array(shape, 60)
    assert curve == pytest.approx(times.times(shape, 60))
    assert np.all(np.isfinite(curve))
    assert np.all(curve > 0)
    assert np.all(np.diff(curve) >= -1e-15)
