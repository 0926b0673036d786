"""Circuit breakers: drafting that costs more than it saves is turned off, and tried again ever more rarely until it pays."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

STAKE = 1.0
MOST_CREDIT = 8.0
SHARE = 0.02
"""The part of a request's time that a source may lose before it has been right."""
MOST_GUESSES = 32
"""Guesses running that have to come true before a source that rests drafts again: one the first time, and so many at most."""
CONTROL_EVERY = 100


class SourceBreaker:
    """Decides how much one source may draft for one request, by an account of what its drafts gained and lost, in plain steps.

    A draft has no more rows than the account pays for should all be wrong. It begins with STAKE, or the SHARE of the ``tokens``
    that the request may have, and grows to MOST_CREDIT at most. A source whose account does not pay for a row rests. What it
    would have drafted is compared with the tokens that come, which costs no row: guesses that come true give it a new STAKE,
    one the first time, and each time twice as many running, until it has gained something.
    """

    def __init__(self, tokens: int | None = None) -> None:
        self._account = STAKE if tokens is None else min(STAKE, SHARE * tokens)
        self._right, self._wanted = 0, 1

    def affords(self, costs: Sequence[float]) -> int:
        """Return how many rows a draft may have, of which 0, 1, .. cost so many plain steps; 0: the source rests."""
        return max(0, bisect_right(costs, self._account) - 1)

    def report(self, gain: float) -> None:
        """Take in the gain of a verified draft: (1 + accepted) / (the step's time with it / without it)."""
        self._account = min(MOST_CREDIT, self._account + (gain - 1 if gain >= 1 else 1 - 1 / gain))
        if self._account > 2 * STAKE:
            self._wanted = 1

    def guessed(self, right: bool) -> None:
        """Take in whether the token came that the source would have drafted while it rested."""
        self._right = self._right + 1 if right else 0
        if self._right >= self._wanted and self._account < STAKE:
            self._account, self._right, self._wanted = STAKE, 0, min(MOST_GUESSES, 2 * self._wanted)


class EngineBreaker:
    """Decides if anything is drafted at all, by tokens per second of steps with drafts against steps without.

    Both are reported relative to what a step without drafts should take at their batch, so that different batches compare. Two
    windows in a row with a rate more than 2 % lower open it; after a pause one window is tried, and each failure doubles the
    pause.
    """

    WINDOW = 64
    CONTROLS = 4
    TOLERANCE = 0.98
    FIRST_PAUSE = 256
    LONGEST_PAUSE = 16384

    def __init__(self) -> None:
        self.state = "closed"
        self.trips = 0
        self.gain = 1.0
        self._control_time, self._controls = 1.0, 0
        self._since_control = 0
        self._tokens = self._time = 0.0
        self._steps = self._bad = 0
        self._pause = self.FIRST_PAUSE
        self._left = 0

    def try_draft(self) -> bool:
        """Count a step that could draft, and return True if it may."""
        if self.state == "open":
            self._left -= 1
            if self._left > 0:
                return False
            self.state = "half-open"
        return True

    @property
    def wants_control(self) -> bool:
        """True if the next step should go without drafts for comparison.

        About every hundredth should, but the rarer the more drafting gains, so that comparing never costs more than 1 %.
        """
        return self._since_control >= CONTROL_EVERY * max(1.0, self.gain)

    def plain(self, slowness: float) -> None:
        """Take in a step without drafts, which took ``slowness`` times as long as expected."""
        self._controls += 1
        self._since_control = 0
        rate = max(0.05, 1 / self._controls)
        self._control_time += rate * (min(4.0, slowness) - self._control_time)

    def drafted(self, tokens: float, slowness: float) -> None:
        """Take in a step with drafts: ``tokens`` times the tokens of one without, in ``slowness`` times its time."""
        if self.state == "open":
            return
        self._since_control += 1
        self._tokens += tokens
        self._time += min(4.0 * max(1.0, tokens), slowness)
        self._steps += 1
        if self._steps >= self.WINDOW and self._controls >= self.CONTROLS:
            self._judge()

    def _judge(self) -> None:
        self.gain = self._tokens / self._time * self._control_time
        self._tokens = self._time = 0.0
        self._steps = 0
        self._bad = self._bad + 1 if self.gain < self.TOLERANCE else 0
        if self._bad == 0:
            self.state, self._pause = "closed", self.FIRST_PAUSE
        elif self.state == "half-open" or self._bad >= 2:
            self._open()

    def _open(self) -> None:
        self.state, self._left, self._bad = "open", self._pause, 0
        self._pause = min(self.LONGEST_PAUSE, 2 * self._pause)
        self.trips += 1
