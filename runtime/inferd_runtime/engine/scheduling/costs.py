"""Measurements of what a step costs on this device, taken once before anything is served."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from statistics import median
from typing import TypeAlias

import numpy as np

from inferd_runtime.engine.driver import Driver, SamplingDriver
from inferd_runtime.engine.sampling.device_sampling import greedy_inputs
from inferd_runtime.engine.scheduling.fairness import StepCost
from inferd_runtime.models.batch import Batch, Placement, Span
from inferd_runtime.speculation.times import Profile, StepTimes

Seconds: TypeAlias = Callable[[], float]
"""A clock."""
MANY = 33
"""Rows of the wide step that :func:`measure_cost` times."""
MIXED = 8
"""Sequences of the steps with one uneven row."""
REPEATS = 5
LARGEST = 4096.0
"""The largest ratio of a step's fixed cost to a row's that is told apart."""
SEQUENCES = (1, 4, 8, 16, 64)
ROWS = (1, 2, 3, 5, 9, 17)
SHORT = 16
"""Tokens of context in most timed steps."""
LONG = (128, 1024)
"""Tokens of the long contexts that are tried."""
MEASURED_ROWS = SEQUENCES[-1] * ROWS[-1]
"""Rows of the widest step that is timed."""
MOST_SECONDS = 1.5
MOST_REPEATS = 20


def measure_cost(driver: Driver, clock: Seconds | None = None) -> StepCost:
    """Time a step of one decode row and one of many, and return what that tells. It writes into pages, which must be unused.

    ``clock``: by which steps are timed, ``time.perf_counter`` by default.
    """
    many = min(MANY, driver.pages)
    if many < 2:
        return StepCost()
    few, lots = (_median_time(driver, rows, clock or time.perf_counter) for rows in (1, many))
    row = max((lots - few) / (many - 1), few / (LARGEST + 1), 1e-9)
    return StepCost(max(0.0, few / row - 1), row, timed=True)


def measure_times(driver: Driver, limit: float = MOST_SECONDS, clock: Seconds | None = None) -> StepTimes:
    """Time steps of 1 to 64 sequences with 1 to 17 rows each, a long context, and a tree. It writes into pages, which must be
    unused.

    It takes about ``limit`` seconds: cheap points are timed often, and batches that would take too long not at all; those are
    taken to cost what their rows in all do. If not even two points fit into the cache, a row is taken to cost 1 % of a step.
    ``clock``: see :func:`measure_cost`.
    """
    rows = [count for count in ROWS if _fits(driver, 1, count, SHORT)]
    if len(rows) < 2:
        return StepTimes.linear(1.0, 0.01)
    timing = _Timing(driver, limit, clock or time.perf_counter)
    table, sequences = [timing.row(1, rows)], [1]
    context, reread = timing.context(rows[-1])
    tree = timing.tree(rows[len(rows) // 2])
    uneven = timing.uneven(MIXED) if _fits(driver, MIXED, 2, SHORT) else 0.0
    timed = True
    for count in SEQUENCES[1:]:
        expected = sum(table[-1]) * count / sequences[-1]
        timed = timed and _fits(driver, count, rows[-1], SHORT) and timing.left >= 2 * expected
        known = [sequences[-1] * each for each in rows]
        table.append(timing.row(count, rows) if timed else _by_rows(known, table[-1], [count * each for each in rows]))
        sequences.append(count)
    return StepTimes(Profile(sequences, rows, np.asarray(table), context, reread, tree, uneven))


def _by_rows(known: Sequence[int], seconds: Sequence[float], rows: Sequence[int]) -> list[float]:
    """Return what steps of so many ``rows`` in all take if nothing else counts, of the seconds at ``known`` numbers of rows."""
    each = max(0.0, seconds[-1] - seconds[-2]) / (known[-1] - known[-2])
    return [float(np.interp(count, known, seconds)) + each * max(0, count - known[-1]) for count in rows]


class _Timing:
    """Times batches on a driver for ``limit`` seconds in all. Of several times the shortest counts: nothing disturbed it."""

    def __init__(self, driver: Driver, limit: float, clock: Seconds) -> None:
        self._driver = driver
        self._clock = clock
        self._share = limit / len(SEQUENCES)
        self._end = time.perf_counter() + limit

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return self._end - time.perf_counter()

    def row(self, sequences: int, rows: Sequence[int]) -> list[float]:
        """Return the seconds of steps of so many sequences, one step for each number of ``rows`` per sequence."""
        return self._best([_uniform(self._driver, sequences, count, SHORT) for count in rows], self._share)

    def context(self, rows: int) -> tuple[float, float]:
        """Return the seconds for each token of context, and for each that a further row reads again."""
        length = max((count for count in LONG if _fits(self._driver, 1, rows, count)), default=SHORT)
        if length == SHORT or rows == 1:
            return 0.0, 0.0
        shapes = [(1, SHORT), (rows, SHORT), (1, length), (rows, length)]
        batches = [_uniform(self._driver, 1, count, context) for count, context in shapes]
        short, wide, long, both = self._best(batches, self._share / 2)
        more = length - SHORT
        context = max(0.0, long - short) / more
        return context, max(0.0, (both - wide) / more - context) / (rows - 1)

    def tree(self, rows: int) -> float:
        """Return the additional seconds of a sequence with a mask of its own."""
        chain = _uniform(self._driver, 1, rows, SHORT)
        visible = np.tril(np.ones((rows, SHORT + rows), np.bool_), SHORT)
        tree = replace(chain, placements={0: Placement(np.arange(SHORT + rows), visible)})
        without, with_mask = self._best([chain, tree], self._share / 2)
        return max(0.0, with_mask - without)

    def uneven(self, sequences: int) -> float:
        """Return the additional seconds of a step in which one sequence has a further row, beside the cost of that row."""
        same, mixed, double = self._best(
            [
                _batch(self._driver, [1] * sequences, SHORT),
                _batch(self._driver, [*[1] * (sequences - 1), 2], SHORT),
                _batch(self._driver, [2] * sequences, SHORT),
            ],
            self._share / 2,
        )
        return max(0.0, mixed - same - max(0.0, double - same) / sequences)

    def _best(self, batches: Sequence[Batch], seconds: float) -> list[float]:
        """Time the batches in turns for ``seconds``, so that a disturbance hits all, and return the shortest time of each."""
        self._warm_up(batches)
        end = min(self._end, time.perf_counter() + seconds)
        best = [self._time(batch) for batch in batches]
        for _ in range(MOST_REPEATS):
            if time.perf_counter() + sum(best) > end:
                break
            best = [min(known, self._time(batch)) for known, batch in zip(best, batches, strict=True)]
        return best

    def _warm_up(self, batches: Sequence[Batch]) -> None:
        """Run every batch once on a driver that records a step when it first meets its shape, off the clock."""
        if isinstance(self._driver, SamplingDriver):
            start = time.perf_counter()
            for batch in batches:
                _run(self._driver, batch)
            self._end += time.perf_counter() - start

    def _time(self, batch: Batch) -> float:
        start = self._clock()
        _run(self._driver, batch)
        return self._clock() - start


def _run(driver: Driver, batch: Batch) -> None:
    """Run a batch as a step would: with a driver that samples, no logits come to the host."""
    if isinstance(driver, SamplingDriver):
        driver.launch(batch, greedy_inputs(batch, driver.vocab_size)).wait()
    else:
        driver.forward(batch)


def _median_time(driver: Driver, rows: int, clock: Seconds) -> float:
    batch = _decode_rows(rows, driver.page_size)
    _run(driver, batch)
    times = []
    for _ in range(REPEATS):
        start = clock()
        _run(driver, batch)
        times.append(clock() - start)
    return median(times)


def _decode_rows(rows: int, page_size: int) -> Batch:
    """Return a batch of one token for each of ``rows`` sequences, each at the start of a page of its own."""
    each = np.arange(rows)
    return Batch(
        tokens=np.zeros(rows, np.int64),
        positions=np.zeros(rows, np.int64),
        slots=each * page_size,
        logit_rows=each,
        spans=[Span(at, 1, 0, [at]) for at in range(rows)],
    )


def _fits(driver: Driver, sequences: int, rows: int, context: int) -> bool:
    return context + rows <= driver.max_context and sequences * _pages(driver, context + rows) <= driver.pages


def _pages(driver: Driver, tokens: int) -> int:
    return -(-tokens // driver.page_size)


def _uniform(driver: Driver, sequences: int, rows: int, context: int) -> Batch:
    """Return a batch of ``rows`` tokens for each of ``sequences``."""
    return _batch(driver, [rows] * sequences, context)


def _batch(driver: Driver, rows: Sequence[int], context: int) -> Batch:
    """Return a batch with ``rows[i]`` tokens for sequence ``i`` after ``context`` tokens, on its own pages, with all logits."""
    each = _pages(driver, context + max(rows))
    index = np.concatenate([np.arange(context, context + count) for count in rows])
    starts = np.repeat(np.arange(len(rows)) * each, rows)
    ends = list(accumulate(rows))
    return Batch(
        tokens=np.zeros(ends[-1], np.int64),
        positions=index,
        slots=starts * driver.page_size + index,
        logit_rows=np.arange(ends[-1]),
        spans=[
            Span(end - count, count, context, range(at * each, (at + 1) * each))
            for at, (count, end) in enumerate(zip(rows, ends, strict=True))
        ],
    )
