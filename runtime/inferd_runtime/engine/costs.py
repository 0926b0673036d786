"""What a step costs on this device, measured once before anything is served."""

from __future__ import annotations

import time
from statistics import median

import numpy as np

from inferd_runtime.engine.fairness import StepCost
from inferd_runtime.engine.plan import Driver
from inferd_runtime.models.batch import Batch, Span

MANY = 33
REPEATS = 5
LARGEST = 4096.0


def measure_cost(driver: Driver) -> StepCost:
    """Time a step of one decode row and one of many (median of a few). Writes into pages, so nothing may be in them yet."""
    many = min(MANY, driver.pages)
    if many < 2:
        return StepCost()
    few, lots = (_median_time(driver, rows) for rows in (1, many))
    row = (lots - few) / (many - 1)
    return StepCost(LARGEST if row <= few / LARGEST else max(0.0, few / row - 1))


def _median_time(driver: Driver, rows: int) -> float:
    batch = _decode_rows(rows, driver.page_size)
    driver.forward(batch)
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        driver.forward(batch)
        times.append(time.perf_counter() - start)
    return median(times)


def _decode_rows(rows: int, page_size: int) -> Batch:
    """One token for each of ``rows`` sequences, every one at the beginning of a page of its own."""
    each = np.arange(rows)
    return Batch(
        tokens=np.zeros(rows, np.int64),
        positions=np.zeros(rows, np.int64),
        slots=each * page_size,
        logit_rows=each,
        spans=[Span(at, 1, 0, [at]) for at in range(rows)],
    )
