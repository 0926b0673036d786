"""The measured cost of a step, on a device whose steps take exactly as long as it says."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from inferd_runtime.engine.sampling.host_sampling import LogitRows
from inferd_runtime.engine.scheduling import costs
from inferd_runtime.engine.scheduling.costs import LARGEST, MOST_SECONDS, measure_cost, measure_times
from inferd_runtime.models.batch import Batch, Outputs
from inferd_runtime.speculation.times import StepShape, StepTimes
from inferd_runtime.testing.null_driver import NullDriver


class Timed(NullDriver):
    """Every forward moves the clock by ``fixed``, ``row`` per row, ``read`` per token of context and ``tree`` per mask."""

    def __init__(
        self, fixed: float, row: float, pages: int = 64, *, read: float = 0.0, tree: float = 0.0, jitter: float = 0.0
    ) -> None:
        super().__init__(pages=pages, checked=False)
        self.fixed, self.row, self.read, self.tree, self.now = fixed, row, read, tree, 0.0
        self.jitter, self.rng = jitter, Random(3)

    def forward(self, batch: Batch) -> Outputs:
        context = sum(span.start for span in batch.spans)
        seconds = self.fixed + self.row * len(batch.tokens) + self.read * context + self.tree * len(batch.placements)
        self.now += seconds * (1 + self.jitter * (self.rng.random() < 0.5))
        return super().forward(batch)

    def logits(self, history: list[int]) -> LogitRows:
        return np.zeros(self.vocab_size, np.float32)


@pytest.mark.parametrize(
    ("driver", "fixed"),
    [
        (Timed(8.0, 1.0), 8.0),
        (Timed(0.0, 1.0), 0.0),
        (Timed(1.0, 0.01, pages=9), 100.0),
        (Timed(1.0, 0.0), LARGEST),
        (Timed(1.0, 0.0, pages=1), 8.0),
    ],
)
def test_the_fixed_part_is_told_in_rows(driver: Timed, fixed: float) -> None:
    assert measure_cost(driver, clock=lambda: driver.now).fixed == pytest.approx(fixed)


def profiled(monkeypatch: pytest.MonkeyPatch, driver: Timed, limit: float = MOST_SECONDS) -> StepTimes:
    monkeypatch.setattr(costs.time, "perf_counter", lambda: driver.now)
    return measure_times(driver, limit)


SHAPES = [
    StepShape(1, 1, 16),
    StepShape(1, 4, 16),
    StepShape(2, 18, 32),
    StepShape(9, 30, 144),
    StepShape(60, 180, 960),
]


def test_a_profile_tells_what_steps_take(monkeypatch: pytest.MonkeyPatch) -> None:
    times = profiled(monkeypatch, Timed(1e-3, 2e-5, pages=4096))
    for shape in SHAPES:
        assert times.time(shape) == pytest.approx(1e-3 + 2e-5 * shape.rows, rel=1e-3)


def test_a_disturbed_device_is_measured_by_its_quiet_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    times = profiled(monkeypatch, Timed(1e-3, 2e-5, pages=4096, jitter=5.0))
    for shape in SHAPES[:4]:
        assert times.time(shape) == pytest.approx(1e-3 + 2e-5 * shape.rows, rel=0.3)


def test_context_and_trees_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    times = profiled(monkeypatch, Timed(1e-3, 2e-5, pages=4096, read=1e-5, tree=5e-4))
    assert times.tree == pytest.approx(5e-4)
    assert times.time(StepShape(1, 3, 400)) - times.time(StepShape(1, 3, 0)) == pytest.approx(4e-3)


class Uneven(Timed):
    """A device that takes sequences with one row and those with more one after the other."""

    def forward(self, batch: Batch) -> Outputs:
        self.now += 3e-4 * (len({span.count for span in batch.spans}) > 1)
        return super().forward(batch)


def test_what_an_uneven_batch_costs_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """One draft in a batch of many costs more than its rows; a profile of even batches alone made it look free."""
    times = profiled(monkeypatch, Uneven(1e-3, 2e-5, pages=4096))
    for shape, more in ((StepShape(8, 8, 0), 0.0), (StepShape(8, 9, 0), 3e-4), (StepShape(1, 9, 0), 0.0)):
        assert times.time(shape) == pytest.approx(1e-3 + 2e-5 * shape.rows + more, rel=1e-2)
        listed = times.times(shape, 5)
        assert listed == pytest.approx(times.array(shape, 5).tolist())


@pytest.mark.parametrize("step", [1e-3, 0.02, 0.3])
def test_measuring_ends_in_time(monkeypatch: pytest.MonkeyPatch, step: float) -> None:
    driver = Timed(step, step / 20, pages=4096)
    times = profiled(monkeypatch, driver)
    assert driver.now < max(1.3 * MOST_SECONDS, 40 * step)
    assert times.time(StepShape(1, 5, 0)) == pytest.approx(step * 1.25, rel=0.01)
    assert times.learns


def test_rows_of_a_batch_are_not_free_where_there_was_time_for_one_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a large model one sequence takes all the time there is for measuring: drafts in a batch looked free then."""
    times = profiled(monkeypatch, Timed(0.1, 0.05, pages=4096))
    for shape in (StepShape(4, 5, 64), StepShape(8, 8, 128), StepShape(8, 40, 128), StepShape(32, 100, 512)):
        assert times.time(shape) == pytest.approx(0.1 + 0.05 * shape.rows, rel=0.01)


class Folded(Timed):
    """Up to eight rows cost one step, as on a processor that reads the weights meanwhile; each further one an eighth."""

    def forward(self, batch: Batch) -> Outputs:
        self.fixed, self.row = 0.1 + 0.0125 * max(0, len(batch.tokens) - 8), 0.0
        return super().forward(batch)


def test_batches_that_there_was_no_time_for_cost_what_their_rows_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """From batches of one and four, the rows of eight drafts seemed to cost a quarter of what they did."""
    times = profiled(monkeypatch, Folded(0.1, 0.0, pages=4096), limit=12.0)
    for sequences, rows in ((4, 12), (8, 8), (8, 16), (8, 24), (32, 64)):
        expected = 0.1 + 0.0125 * max(0, rows - 8)
        assert times.time(StepShape(sequences, rows, 16 * sequences)) == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize(("pages", "points"), [(1, False), (4, False), (5, True), (40, True)])
def test_a_small_cache_has_fewer_points(monkeypatch: pytest.MonkeyPatch, pages: int, points: bool) -> None:
    times = profiled(monkeypatch, Timed(1.0, 0.5, pages=pages))
    assert times.learns == points
    assert times.time(StepShape(1, 3, 0)) == pytest.approx(2.5 if points else 1.03)
