"""What steps cost is measured once and kept, and means the same when it is read back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from inferd_runtime.engine.scheduling import kept_costs
from inferd_runtime.engine.scheduling.fairness import StepCost
from inferd_runtime.engine.scheduling.kept_costs import KeptCosts, known_costs
from inferd_runtime.kept_results import KeptResults
from inferd_runtime.speculation.times import Profile, StepShape, StepTimes
from inferd_runtime.testing.null_driver import NullDriver

PROFILE = Profile((1, 4), (1, 2, 5), np.asarray([[1e-3, 1.1e-3, 1.3e-3], [1.5e-3, 2e-3, 4e-3]]), 1e-7, 1e-8, 1e-5, 2e-5)
SHAPES = [StepShape(1, 1, 16), StepShape(1, 5, 900), StepShape(8, 9, 200), StepShape(64, 640, 4000, 3)]


@pytest.fixture
def kept(tmp_path: Path) -> KeptResults[KeptCosts]:
    return KeptResults(tmp_path / "costs", KeptCosts)


def measured(patch: pytest.MonkeyPatch, cost: StepCost, times: StepTimes) -> None:
    patch.setattr(kept_costs, "measure_cost", lambda driver, clock: cost)
    patch.setattr(kept_costs, "measure_times", lambda driver, clock: times)
    patch.setattr(kept_costs, "clocks", lambda: (0.0, 0.0))


def test_the_second_start_measures_nothing(kept: KeptResults[KeptCosts], monkeypatch: pytest.MonkeyPatch) -> None:
    driver = NullDriver(pages=256)
    measured(monkeypatch, StepCost(3.25, 1e-4, timed=True), StepTimes(PROFILE))
    cost, times = known_costs(driver, ("model",), kept)
    measured(monkeypatch, StepCost(), StepTimes.linear(1.0, 0.5))
    again, read = known_costs(driver, ("model",), kept)
    assert again == cost
    assert read.learns
    assert [read.times(shape, 8) for shape in SHAPES] == [times.times(shape, 8) for shape in SHAPES]
    for other in (known_costs(driver, ("another",), kept), known_costs(NullDriver(pages=128), ("model",), kept)):
        assert other[0] == StepCost()


def test_times_of_a_busy_machine_are_not_kept(
    kept: KeptResults[KeptCosts], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured(monkeypatch, StepCost(3.25, 1e-4, timed=True), StepTimes(PROFILE))
    for cpu, files in ((1.0, 0), (1.5, 1)):
        monkeypatch.setattr(kept_costs, "clocks", iter([(10.0, 4.0), (12.0, 4.0 + cpu)]).__next__)
        known_costs(NullDriver(pages=256), ("model",), kept)
        assert len(list(tmp_path.rglob("*.json"))) == files


def test_what_was_not_measured_is_not_kept(
    kept: KeptResults[KeptCosts], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured(monkeypatch, StepCost(), StepTimes.linear(1.0, 0.01))
    known_costs(NullDriver(pages=1), ("model",), kept)
    assert not list(tmp_path.rglob("*.json"))
