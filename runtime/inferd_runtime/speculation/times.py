"""How long a step takes, by its shape: a measured profile, kept in step with what is seen while serving."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Seconds = npt.NDArray[np.float64]
LEVEL_RATE = 0.2
POINT_RATE = 0.05
FORGET = 0.9995
LARGEST_SURPRISE = log(2.0)
BEYOND = 1.5


class StepShape(NamedTuple):
    """What a step computes: ``sequences`` in it, ``rows`` (tokens fed in all), ``context`` (tokens of K and V that are read,
    summed over the sequences) and ``trees``, how many of the sequences need a mask of their own.
    """

    sequences: int
    rows: int
    context: int
    trees: int = 0


class Profile(NamedTuple):
    """What was measured: ``seconds`` float64[S, U] of steps with ``sequences[i]`` sequences of ``rows[j]`` rows each at hardly
    any context; seconds more for each token of ``context``, for each one that each further row of its sequence reads
    (``reread``), and for each ``tree``.
    """

    sequences: Sequence[int]
    rows: Sequence[int]
    seconds: Seconds
    context: float = 0.0
    reread: float = 0.0
    tree: float = 0.0


class StepTimes:
    """Seconds of a step: the profile between its points, times what experience adds.

    Experience is one factor for the whole device (other work on it, its clock) that follows quickly, and one for each point
    of the profile that follows slowly and is forgotten where nothing comes. Both move by clipped logarithms of seen over
    expected, so that a step that was interrupted moves them no more than one that took twice as long as expected.
    """

    def __init__(self, profile: Profile, *, learns: bool = True) -> None:
        self._profile = profile
        self._learns = learns
        self._sequences = np.asarray(profile.sequences, np.float64)
        self._rows = np.asarray(profile.rows, np.float64)
        self._log_seconds = np.log(monotone(profile.seconds))
        self._points = np.zeros_like(self._log_seconds)
        self._level = 0.0
        self._grid = np.exp(self._log_seconds)
        self._curves: dict[int, tuple[list[float], list[float]]] = {}

    @classmethod
    def linear(cls, step: float, row: float, tree: float = 0.0) -> StepTimes:
        """A device where a step takes ``step`` seconds and ``row`` for each row, whatever else; it learns nothing."""
        rows = np.asarray([[step + row, step + 2 * row], [step + 2 * row, step + 4 * row]])
        return cls(Profile((1, 2), (1, 2), rows, tree=tree), learns=False)

    @property
    def learns(self) -> bool:
        """Whether it was measured, and follows what is seen."""
        return self._learns

    @property
    def tree(self) -> float:
        """Seconds that a sequence with a mask of its own costs more."""
        return self._profile.tree

    def time(self, shape: StepShape) -> float:
        """Seconds of a step of this shape."""
        return float(self.times(shape, 0)[0])

    def times(self, shape: StepShape, extra: int) -> Seconds:
        """float64[extra + 1]: seconds of a step of this shape with 0, 1, .. ``extra`` more rows in it."""
        each = (shape.rows + np.arange(extra + 1)) / shape.sequences
        seconds = self._between(shape.sequences, each)
        if shape.context:
            further = self._profile.context + self._profile.reread * (each - 1)
            seconds = seconds + shape.context * further * exp(self._level)
        if shape.trees:
            seconds = seconds + shape.trees * self.tree * exp(self._level)
        return seconds

    def _between(self, sequences: int, each: Seconds) -> Seconds:
        """The profile at so many sequences of ``each`` rows, straight between its points and beyond the last."""
        rows, seconds = self._curve(sequences)
        inside = np.interp(each, rows, seconds)
        if each[-1] <= rows[-1]:
            return inside
        slope = (seconds[-1] - seconds[-2]) / (rows[-1] - rows[-2]) if len(rows) > 1 else 0.0
        return np.asarray(inside + np.maximum(0.0, each - rows[-1]) * slope)

    def _curve(self, sequences: int) -> tuple[list[float], list[float]]:
        curve = self._curves.get(sequences)
        if curve is None:
            low, share = _place(self._sequences, sequences)
            high = min(low + 1, len(self._sequences) - 1)
            mixed = self._grid[low] * (1 - share) + self._grid[high] * share
            curve = self._curves[sequences] = (self._rows.tolist(), mixed.tolist())
        return curve

    def learn(self, shape: StepShape, seconds: float) -> None:
        """Take in how long a step of this shape took. Shapes far beyond the profile say nothing about its points."""
        each = shape.rows / shape.sequences
        if not self._learns or seconds <= 0 or each > BEYOND * self._rows[-1]:
            return
        surprise = log(seconds / self.time(shape))
        clipped = max(-LARGEST_SURPRISE, min(LARGEST_SURPRISE, surprise))
        self._level += LEVEL_RATE * clipped
        self._points *= FORGET
        self._move(shape.sequences, each, POINT_RATE * (1 - LEVEL_RATE) * clipped)
        self._grid = monotone(np.exp(self._log_seconds + self._points + self._level))
        self._curves.clear()

    def _move(self, sequences: int, each: float, amount: float) -> None:
        for row, row_share in _around(self._sequences, sequences):
            for column, share in _around(self._rows, each):
                self._points[row, column] += amount * row_share * share


def _place(points: Seconds, at: float) -> tuple[int, float]:
    """The point at or below ``at`` and how far it is to the next one; beyond the last segment the share exceeds 1."""
    if len(points) == 1:
        return 0, 0.0
    low = int(np.clip(np.searchsorted(points, at, side="right") - 1, 0, len(points) - 2))
    return low, float((at - points[low]) / (points[low + 1] - points[low]))


def _around(points: Seconds, at: float) -> list[tuple[int, float]]:
    low, share = _place(points, at)
    share = max(0.0, min(1.0, share))
    return [(low, 1 - share)] + ([(low + 1, share)] if share else [])


def monotone(seconds: Seconds) -> Seconds:
    """float64[S, U] that never falls along either axis: half way between the running maximum and, from the other end, minimum.

    More work never takes less time; where a measurement says so it is noise, or a spot that nobody should plan for.
    """
    most = np.maximum.accumulate(np.maximum.accumulate(seconds, 0), 1)
    turned = seconds[::-1, ::-1]
    least = np.minimum.accumulate(np.minimum.accumulate(turned, 0), 1)[::-1, ::-1]
    return np.asarray((most + least) / 2)
