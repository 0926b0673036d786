"""The measured cost of a step, on a device whose steps take exactly as long as it says."""

from __future__ import annotations

import pytest

from inferd_runtime.engine import costs
from inferd_runtime.engine.costs import LARGEST, measure_cost
from inferd_runtime.models.batch import Batch, Outputs
from inferd_runtime.testing.null_driver import NullDriver


class Timed(NullDriver):
    """Every forward moves the clock by ``fixed`` and ``row`` per row."""

    def __init__(self, fixed: float, row: float, pages: int = 64) -> None:
        super().__init__(pages=pages)
        self.fixed, self.row, self.now = fixed, row, 0.0

    def forward(self, batch: Batch) -> Outputs:
        self.now += self.fixed + self.row * len(batch.tokens)
        return super().forward(batch)


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
def test_the_fixed_part_is_told_in_rows(monkeypatch: pytest.MonkeyPatch, driver: Timed, fixed: float) -> None:
    monkeypatch.setattr(costs.time, "perf_counter", lambda: driver.now)
    assert measure_cost(driver).fixed == pytest.approx(fixed)
