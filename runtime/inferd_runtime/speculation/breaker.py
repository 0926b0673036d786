"""Circuit breakers: drafting that costs more than it saves is turned off, and tried again ever more rarely until it pays."""

from __future__ import annotations

LONG_MATCH = 12
"""Tokens of context from which on a match counts as long."""
CREDIT = 1.0
MOST_CREDIT = 8.0
RIGHT_GUESSES, MOST_GUESSES = 2, 32
"""Guesses running that have to come true before a source that is off drafts again: the first time, and at most."""
LEAST_ROWS = 4
"""A draft may always have so many rows: fewer could hardly gain where a row is dear."""
FIRST_WAIT = 8
LONGEST_WAIT = 4096
CONTROL_EVERY = 100


class SourceBreaker:
    """Decides if one source may draft for one request, by an account of what its drafts gained and lost, in plain steps' time.

    The account begins with CREDIT and grows to MOST_CREDIT at most; when it is used up, the source rests. It is tried again
    after 8 steps, then 16, and so on; with a long match after the first step, then the second, the fourth, and so on. One trial
    that pays turns it on again, and so do guesses that would have been right: RIGHT_GUESSES running, and each time twice as many
    until it has gained something. A draft has no more rows than the account pays for should all be wrong. So a source can cost a
    request no more than a step or two, and then ever less.
    """

    def __init__(self) -> None:
        self._account = CREDIT
        self._on = True
        self._wait = FIRST_WAIT
        self._rested = 0
        self._right, self._wanted = 0, RIGHT_GUESSES

    @property
    def on(self) -> bool:
        """False while the source rests."""
        return self._on

    def affords(self, row_price: float) -> int:
        """Return how many rows a draft may have that cost so many plain steps each."""
        return LEAST_ROWS if row_price * LEAST_ROWS >= self._account else int(self._account / max(row_price, 1e-3))

    def try_draft(self, match: int) -> bool:
        """Count a step, and return True if the source may draft in it, on ``match`` tokens of context. Called once a step."""
        if self._on:
            return True
        self._rested += 1
        return self._rested >= (self._wait // FIRST_WAIT if match >= LONG_MATCH else self._wait)

    def report(self, gain: float) -> None:
        """Take in the gain of a verified draft: (1 + accepted) / (the step's time with it / without it)."""
        if self._on:
            self._account = min(MOST_CREDIT, self._account + (gain - 1 if gain >= 1 else 1 - 1 / gain))
            if self._account < 0:
                self._on, self._rested, self._right = False, 0, 0
            elif self._account > 2 * CREDIT:
                self._wanted = RIGHT_GUESSES
        elif gain > 1:
            self._turn_on()
        else:
            self._wait, self._rested = min(LONGEST_WAIT, 2 * self._wait), 0

    def guessed(self, right: bool) -> None:
        """Take in whether the token came that the source would have drafted while it rested: that cost no row."""
        self._right = self._right + 1 if right else 0
        if not self._on and self._right >= self._wanted:
            self._turn_on()
            self._wanted = min(MOST_GUESSES, 2 * self._wanted)

    def _turn_on(self) -> None:
        self._on, self._account, self._wait = True, CREDIT, FIRST_WAIT


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
