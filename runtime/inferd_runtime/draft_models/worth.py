"""Decides if a draft model is asked at all, by the time that tokens take with it and without it."""

from __future__ import annotations

import math

BUDGET = 0.01
"""The share of all time that trials of the slower way may cost."""
BLOCK = 8
"""Steps of a trial that are compared, of each generation that is open."""
LONGEST_BLOCK = 64
WARM_UP_BLOCKS = 16
"""A trial with drafts ends after so many blocks in which the draft model has not caught up."""
FIRST_STEPS = 4
"""Steps without drafts before the first trial, of each open generation."""
STOP_LOSS = 4.0
"""Steps' time, of each open generation, that a trial may lose before it ends early."""
CREDIT, MOST_CREDIT = 2.0, 8.0
"""Steps' time that drafts may lose, and have gained at most, before they are compared again ahead of time."""
MARGIN = math.log(1.03)
"""Drafts that are not asked for have to promise at least this much more speed."""
LARGEST = 8.0
"""A step counts as so many usual ones at most, so that a stall of the machine decides nothing."""
LARGEST_SAMPLE = math.log(4.0)
SAMPLE_RATE = 0.25
NOISE = 0.25
"""The standard deviation of one comparison's logarithm, on a machine with other work."""
MOST_DOUBLINGS = 4
LONGEST_PAUSE = 4096
"""Steps between two trials at most, of each open generation."""


class _Pace:
    """Tokens, seconds and steps of one way, the newest ``horizon`` or so."""

    def __init__(self) -> None:
        self.tokens = self.seconds = self.steps = 0.0

    def add(self, tokens: int, seconds: float, horizon: int) -> None:
        keep = 1 - 1 / horizon
        self.tokens = self.tokens * keep + tokens
        self.seconds = self.seconds * keep + seconds
        self.steps = self.steps * keep + 1

    @property
    def known(self) -> bool:
        return self.seconds > 0

    @property
    def token_seconds(self) -> float:
        return self.seconds / self.tokens

    @property
    def step_seconds(self) -> float:
        return self.seconds / self.steps if self.steps else 0.0

    def loss(self, other: _Pace) -> float:
        """Return the seconds that its tokens took longer than they would have at the other's pace."""
        return self.seconds - self.tokens * other.token_seconds


class DraftWorth:
    """Compares one target with a draft model and without it, for all its generations together.

    A model of what drafts cost cannot see everything: a draft engine that works on the target's own processors makes the steps
    slower that it is measured by. So what decides is wall time for a token, measured in both ways by turns: while drafts are
    asked for, a trial goes without them now and then; while they are not, a trial asks for them. A trial is as rare as it takes
    for what it loses to be BUDGET of the time, and is ended early where it loses much; where it finds the same as before, the
    next one without need comes later still. Trials that lose nothing come often, as they are free.

    The first generation begins without drafts, the others with what those before them have found. Nothing here depends on which
    tokens were written.
    """

    def __init__(self) -> None:
        self.drafts = False
        """True if the draft model may be asked now."""
        self.pays = False
        """What was found last."""
        self.trials = 0
        self._open = 0
        self._paces = {True: _Pace(), False: _Pace()}
        self._gain, self._samples, self._same = 0.0, 0, 0
        self._left = 0.0
        self._begin_stretch()

    @property
    def trying(self) -> bool:
        """True during a trial of the way that was slower."""
        return self.drafts != self.pays

    @property
    def gain(self) -> float:
        """The speed with drafts relative to that without, as found so far."""
        return math.exp(self._gain)

    def opened(self) -> None:
        """Count a generation that begins."""
        self._open += 1

    def closed(self) -> None:
        """Count a generation that is over."""
        self._open -= 1

    def count_step(self, tokens: int, seconds: float, *, drafts: bool, settled: bool) -> None:
        """Take in that a generation wrote ``tokens`` in a step, and how long after the step before.

        ``drafts``: what :attr:`drafts` was when it was planned. ``settled``: the generation's step before was planned so, too,
        and a draft model that is asked has caught up with it.
        """
        if drafts != self.drafts or tokens <= 0:
            return
        seconds = self._clipped(seconds)
        self._steps += 1
        if settled or (drafts and not self.trying and self._paces[False].known):
            # While drafts are asked for, what it takes a draft model to catch up with a new generation counts as well.
            self._paces[drafts].add(tokens, seconds, self._block)
            self._compared += 1
        other = self._paces[not drafts]
        if other.known:
            self._lost += seconds - tokens * other.token_seconds
        if self.trying:
            self._try()
        else:
            self._go_on()

    @property
    def _block(self) -> int:
        return BLOCK * self._streams

    @property
    def _streams(self) -> int:
        return max(1, min(LONGEST_BLOCK // BLOCK, self._open))

    def _clipped(self, seconds: float) -> float:
        usual = max(pace.step_seconds for pace in self._paces.values())
        return min(seconds, LARGEST * usual) if usual else seconds

    def _begin_stretch(self) -> None:
        """Begin a trial, or what is between two."""
        self._steps = self._compared = 0
        self._lost = 0.0

    def _go_on(self) -> None:
        """Count a step between two trials, and begin one when it is time, or when drafts seem to lose."""
        self._left -= 1
        step = self._streams * self._paces[not self.drafts].step_seconds
        self._lost = max(self._lost, -MOST_CREDIT * step)
        losing = self.drafts and self._lost > CREDIT * step
        if losing or (self._left <= 0 and self._compared >= FIRST_STEPS * self._streams):
            self.trials += 1
            self.drafts = not self.drafts
            self._paces[self.drafts] = _Pace()
            self._begin_stretch()

    def _try(self) -> None:
        """Judge once a trial has been long enough, or has lost too much."""
        usual = self._paces[not self.drafts].step_seconds
        if (
            self._compared >= self._block
            or self._steps >= WARM_UP_BLOCKS * self._block
            or (self.drafts and self._lost > STOP_LOSS * self._streams * usual)
        ):
            self._judge()

    def _judge(self) -> None:
        before, paces = self.pays, self._paces
        if paces[True].known and paces[False].known:
            sample = math.log(paces[False].token_seconds / paces[True].token_seconds)
            self._samples += 1
            rate = max(SAMPLE_RATE, 1 / self._samples)
            self._gain += rate * (max(-LARGEST_SAMPLE, min(LARGEST_SAMPLE, sample)) - self._gain)
            self.pays = self._gain > (0.0 if before else MARGIN)
        else:
            # The draft model has not caught up: nothing speaks for it.
            self.pays = False
        self._same = min(MOST_DOUBLINGS, self._same + 1) if self.pays == before else 0
        self._left = self._pause()
        self.drafts = self.pays
        self._begin_stretch()

    def _pause(self) -> float:
        """Return the steps to the next trial: what the last one lost is BUDGET of their time, or less.

        What could be the machine's noise is looked at again soon, the first times: a gain, and a loss that may be none.
        """
        slower, faster = self._paces[not self.pays], self._paces[self.pays]
        lost = slower.loss(faster) if slower.known and faster.known else 0.0
        if not self.pays:
            lost = max(lost, self._lost)
        most = float(LONGEST_PAUSE * self._streams)
        pause = min(most, max(self._block, lost / BUDGET / faster.step_seconds))
        soon = float(self._block * 2**self._same)
        doubt = NOISE / math.sqrt(min(max(self._samples, 1), 1 / SAMPLE_RATE))
        if self.pays:
            return pause if self._gain > 2 * doubt else min(pause, soon)
        is_known = self._samples == 0 or self._gain < -doubt
        return min(most, pause * 2**self._same if is_known else max(pause, soon))
