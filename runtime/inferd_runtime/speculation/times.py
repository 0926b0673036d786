"""The model of step times: seconds by a step's shape, from a measured profile that is adjusted while serving."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from math import exp, log
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Seconds = npt.NDArray[np.float64]
LEVEL_RATE = 0.2
POINT_RATE = 0.05
FORGET = 0.996
REFRESH = 8
LARGEST_SURPRISE = log(2.0)
BEYOND = 1.5


class StepShape(NamedTuple):
    """The size of a step: its ``sequences``, its ``rows`` (tokens fed in all), its ``context`` (tokens of K and V that are read,
    summed over the sequences) and its ``trees``, the sequences that need a mask of their own.
    """

    sequences: int
    rows: int
    context: int
    trees: int = 0


class Profile(NamedTuple):
    """Measured times: ``seconds`` float64[S, U] of steps with ``sequences[i]`` sequences of ``rows[j]`` rows each, with little
    context. There are at least two counts of rows.

    Additional seconds: per token of ``context``, per token that each further row of its sequence reads again (``reread``), per
    ``tree``, and if the sequences do not all have as many rows (``uneven``).
    """

    sequences: Sequence[int]
    rows: Sequence[int]
    seconds: Seconds
    context: float = 0.0
    reread: float = 0.0
    tree: float = 0.0
    uneven: float = 0.0


class StepTimes:
    """Seconds of a step: the interpolated profile, times learnt factors.

    One factor is for the whole device (other work on it, its clock) and adapts quickly; one for each point of the profile adapts
    slowly, and decays where no steps come. Both move by clipped logarithms of measured over expected time, so that a step that
    was interrupted moves them no more than one that took twice as long as expected.
    """

    def __init__(self, profile: Profile, *, learns: bool = True) -> None:
        self._profile = profile
        self.learns = learns
        self._sequences = [float(count) for count in profile.sequences]
        self._rows = [float(count) for count in profile.rows]
        self._measured = np.log(monotone(divisible(profile)))
        self._points = np.zeros_like(self._measured)
        self._seen = 0
        self._level = 1.0
        self._refresh()

    @classmethod
    def linear(cls, step: float, row: float, tree: float = 0.0) -> StepTimes:
        """Return times of ``step`` seconds and ``row`` for each row, which learn nothing."""
        rows = np.asarray([[step + row, step + 2 * row], [step + 2 * row, step + 4 * row]])
        return cls(Profile((1, 2), (1, 2), rows, tree=tree), learns=False)

    @property
    def profile(self) -> Profile:
        """The measured times, without what was learnt since."""
        return self._profile

    @property
    def tree(self) -> float:
        """The additional seconds of a sequence with a mask of its own."""
        return self._profile.tree

    def time(self, shape: StepShape) -> float:
        """Return the seconds of a step of this shape."""
        return self.times(shape, 0)[0]

    def times(self, shape: StepShape, extra: int) -> list[float]:
        """Return the seconds of a step of this shape with 0, 1, .. ``extra`` more rows. Quicker than arrays for a few rows."""
        sequences, rows, context, trees = shape
        curve, points, level = self._curve(sequences), self._rows, self._level
        fixed = context * (self._profile.context - self._profile.reread) + trees * self._profile.tree
        further = context * self._profile.reread
        uneven = self._profile.uneven if sequences > 1 else 0.0
        times: list[float] = []
        at = 0
        for count in range(rows, rows + extra + 1):
            each = count / sequences
            while at + 2 < len(points) and each > points[at + 1]:
                at += 1
            share = (each - points[at]) / (points[at + 1] - points[at])
            mixed = uneven if count > sequences else 0.0
            times.append(level * (curve[at] + share * (curve[at + 1] - curve[at]) + fixed + further * each + mixed))
        return times

    def array(self, shape: StepShape, extra: int) -> Seconds:
        """Return what :meth:`times` does, as float64[extra + 1]."""
        curve, points = np.asarray(self._curve(shape.sequences)), np.asarray(self._rows)
        each = np.arange(shape.rows, shape.rows + extra + 1) / shape.sequences
        slope = (curve[-1] - curve[-2]) / (points[-1] - points[-2])
        seconds = np.interp(each, points, curve) + slope * np.maximum(0.0, each - points[-1])
        context = shape.context * (self._profile.context + self._profile.reread * (each - 1))
        mixed = self._profile.uneven * ((each > 1) & (shape.sequences > 1))
        return np.asarray(self._level * (seconds + context + shape.trees * self._profile.tree + mixed))

    def _curve(self, sequences: int) -> list[float]:
        """Return the seconds at so many sequences for each of the profile's row counts."""
        curve = self._curves.get(sequences)
        if curve is None:
            low, share = _place(self._sequences, sequences)
            high = min(low + 1, len(self._sequences) - 1)
            mixed = self._grid[low] * (1 - share) + self._grid[high] * share
            curve = self._curves[sequences] = mixed.tolist()
        return curve

    def learn(self, shape: StepShape, seconds: float) -> None:
        """Take in how long a step of this shape took. Shapes far beyond the profile are ignored."""
        each = shape.rows / shape.sequences
        if not self.learns or seconds <= 0 or each > BEYOND * self._rows[-1]:
            return
        surprise = log(seconds / self.time(shape))
        clipped = max(-LARGEST_SURPRISE, min(LARGEST_SURPRISE, surprise))
        self._level *= exp(LEVEL_RATE * clipped)
        self._move(shape.sequences, each, POINT_RATE * (1 - LEVEL_RATE) * clipped)
        self._seen += 1
        if self._seen % REFRESH == 0:
            self._points *= FORGET
            self._refresh()

    def _move(self, sequences: int, each: float, amount: float) -> None:
        for row, row_share in _around(self._sequences, sequences):
            for column, share in _around(self._rows, each):
                self._points[row, column] += amount * row_share * share

    def _refresh(self) -> None:
        self._grid = monotone(np.exp(self._measured + self._points))
        self._curves: dict[int, list[float]] = {}


def _place(points: Sequence[float], at: float) -> tuple[int, float]:
    """Return the point at or below ``at``, and the share of the way to the next one; beyond the last segment it exceeds 1."""
    if len(points) == 1:
        return 0, 0.0
    low = max(0, min(bisect_right(points, at) - 1, len(points) - 2))
    return low, (at - points[low]) / (points[low + 1] - points[low])


def _around(points: Sequence[float], at: float) -> list[tuple[int, float]]:
    """Return the points on both sides of ``at`` with their shares, which add up to 1."""
    low, share = _place(points, at)
    share = max(0.0, min(1.0, share))
    return [(low, 1 - share)] + ([(low + 1, share)] if share else [])


def divisible(profile: Profile) -> Seconds:
    """Return the seconds, float64[S, U], lowered so that no step takes longer than its parts one after another would."""
    work = np.outer(profile.sequences, profile.rows)
    each = profile.seconds / work
    return np.asarray(np.minimum.accumulate(np.minimum.accumulate(each, 0), 1) * work)


def monotone(seconds: Seconds) -> Seconds:
    """Return seconds, float64[S, U], that never fall along either axis, as more work never takes less time.

    They are the mean of the running maximum and of the running minimum from the other end.
    """
    most = np.maximum.accumulate(np.maximum.accumulate(seconds, 0), 1)
    turned = seconds[::-1, ::-1]
    least = np.minimum.accumulate(np.minimum.accumulate(turned, 0), 1)[::-1, ::-1]
    return np.asarray((most + least) / 2)
