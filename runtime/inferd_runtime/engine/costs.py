"""What a step costs on this device, measured once before anything is served."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

import numpy as np

from inferd_runtime.engine.fairness import StepCost
from inferd_runtime.engine.plan import Driver
from inferd_runtime.models.batch import Batch, Placement, Span
from inferd_runtime.speculation.times import Profile, StepTimes

MANY = 33
REPEATS = 5
LARGEST = 4096.0
SEQUENCES = (1, 4, 16, 64)
ROWS = (1, 2, 3, 5, 9, 17)
SHORT = 16
LONG = 512
MOST_SECONDS = 1.2


def measure_cost(driver: Driver) -> StepCost:
    """Time a step of one decode row and one of many (median of a few). Writes into pages, so nothing may be in them yet."""
    many = min(MANY, driver.pages)
    if many < 2:
        return StepCost()
    few, lots = (_median_time(driver, rows) for rows in (1, many))
    row = (lots - few) / (many - 1)
    return StepCost(LARGEST if row <= few / LARGEST else max(0.0, few / row - 1))


def measure_times(driver: Driver, limit: float = MOST_SECONDS) -> StepTimes:
    """Time steps of 1 to 64 sequences with 1 to 17 rows each, a long context, and a tree. Pages must be unused yet.

    It stops growing the batch after ``limit`` seconds, in which every point is timed a few times or, where steps are slow,
    once; what was not reached is continued from what was. Raises nothing for small caches: they have fewer points.
    """
    clock = _Clock(driver, limit)
    rows = [
        count for count in ROWS if SHORT + count <= driver.max_context and _pages(driver, SHORT + count) <= driver.pages
    ]
    if not rows:
        return StepTimes.linear(1.0, 0.01)
    table = [clock.row(1, rows)]
    sequences = [1]
    for count in SEQUENCES[1:]:
        slowest = table[-1][-1] * count / sequences[-1]
        if count * _pages(driver, SHORT + rows[-1]) > driver.pages or clock.left < slowest * len(rows):
            break
        table.append(clock.row(count, rows))
        sequences.append(count)
    seconds = np.asarray(table)
    context, reread = clock.context(rows[-1], seconds[0])
    return StepTimes(Profile(sequences, rows, seconds, context, reread, clock.tree(rows, seconds[0])))


class _Clock:
    """Times batches on a driver until its time is up."""

    def __init__(self, driver: Driver, limit: float) -> None:
        self._driver = driver
        self._end = time.perf_counter() + limit

    @property
    def left(self) -> float:
        """Seconds that may still be spent."""
        return self._end - time.perf_counter()

    def row(self, sequences: int, rows: Sequence[int]) -> list[float]:
        """Seconds of steps with ``sequences`` of each of these ``rows``; measured in turns, so that a disturbance hits all."""
        batches = [_uniform(self._driver, sequences, count, SHORT) for count in rows]
        best = [self._time(batch) for batch in batches]
        for _ in range(REPEATS):
            if self.left < sum(best):
                break
            best = [min(known, self._time(batch)) for known, batch in zip(best, batches, strict=True)]
        return best

    def context(self, rows: int, short: Sequence[float]) -> tuple[float, float]:
        """Seconds for each token of context, and for each that a further row reads again."""
        length = min(LONG, self._driver.max_context - rows, self._driver.pages * self._driver.page_size - rows)
        if length < 4 * SHORT or self.left < 4 * (short[0] + short[-1]):
            return 0.0, 0.0
        one, many = (self._best(_uniform(self._driver, 1, count, length)) for count in (1, rows))
        more = length - SHORT
        context = max(0.0, one - short[0]) / more
        return context, max(0.0, many - short[-1] - context * more) / (more * max(1, rows - 1))

    def tree(self, rows: Sequence[int], short: Sequence[float]) -> float:
        """Seconds that a sequence with a mask of its own takes more."""
        at = len(rows) // 2
        batch = _uniform(self._driver, 1, rows[at], SHORT)
        visible = np.tril(np.ones((rows[at], SHORT + rows[at]), np.bool_), SHORT)
        placed = replace(batch, placements={0: Placement(np.arange(SHORT + rows[at]), visible)})
        return max(0.0, self._best(placed) - short[at])

    def _best(self, batch: Batch) -> float:
        return min(self._time(batch) for _ in range(REPEATS))

    def _time(self, batch: Batch) -> float:
        start = time.perf_counter()
        self._driver.forward(batch)
        return time.perf_counter() - start


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


def _pages(driver: Driver, tokens: int) -> int:
    return -(-tokens // driver.page_size)


def _uniform(driver: Driver, sequences: int, rows: int, context: int) -> Batch:
    """``rows`` tokens for each of ``sequences`` that hold ``context`` already, on pages of their own, all logits wanted."""
    each = _pages(driver, context + rows)
    index = np.arange(context, context + rows)
    starts = np.arange(sequences) * each
    return Batch(
        tokens=np.zeros(sequences * rows, np.int64),
        positions=np.tile(index, sequences),
        slots=(starts[:, None] * driver.page_size + index).reshape(-1),
        logit_rows=np.arange(sequences * rows),
        spans=[Span(at * rows, rows, context, range(at * each, (at + 1) * each)) for at in range(sequences)],
    )
