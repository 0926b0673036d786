"""When a connection is tried again, and how long a message travels on it."""

from __future__ import annotations

import random
from enum import StrEnum

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 10.0
HEALTHY_SECONDS = 10.0
"""A connection that lasted so long was a good one."""
JITTER = 0.25
"""Pauses are shorter by up to this share, so that many targets do not come back at once."""
SHARE, DEVIATION_SHARE = 0.125, 0.25
DEVIATIONS = 2.0


class LinkState(StrEnum):
    """``closed``: the connection is in use; ``open``: there is none, and none is tried; ``half-open``: one is on trial."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class LinkBreaker:
    """Decides when to connect: after each failure a pause, twice as long each time, and then one trial.

    A trial that has lasted HEALTHY_SECONDS, or longer than that, closes the breaker; then the pauses begin anew. ``now`` is in
    seconds of any clock.
    """

    def __init__(self, source: random.Random | None = None) -> None:
        self._random = source or random.Random()
        self._pause = FIRST_PAUSE
        self._try_at = 0.0
        self._since = 0.0
        self._connected = False

    def state(self, now: float) -> LinkState:
        """Return the state."""
        if self._connected:
            return LinkState.CLOSED if now - self._since >= HEALTHY_SECONDS else LinkState.HALF_OPEN
        return LinkState.OPEN if now < self._try_at else LinkState.HALF_OPEN

    def wait(self, now: float) -> float:
        """Return the seconds until a connection may be tried; 0: now."""
        return max(0.0, self._try_at - now)

    def connected(self, now: float) -> None:
        """Note that the hand-shake went well."""
        self._connected, self._since = True, now

    def failed(self, now: float) -> None:
        """Note that a connection failed or ended."""
        if self.state(now) is LinkState.CLOSED:
            self._pause = FIRST_PAUSE
        self._connected = False
        self._try_at = now + self._pause * (1 - JITTER * self._random.random())
        self._pause = min(LONGEST_PAUSE, 2 * self._pause)


class RoundTrip:
    """The time that a message and its answer travel, smoothed as TCP does (RFC 6298), in seconds."""

    def __init__(self) -> None:
        self._mean: float | None = None
        self._deviation = 0.0

    def add(self, seconds: float) -> None:
        """Take in one measured round trip."""
        if self._mean is None:
            self._mean, self._deviation = seconds, seconds / 2
            return
        self._deviation += DEVIATION_SHARE * (abs(seconds - self._mean) - self._deviation)
        self._mean += SHARE * (seconds - self._mean)

    @property
    def usual(self) -> float:
        """The time within which most answers come; 0 before the first."""
        return 0.0 if self._mean is None else self._mean + DEVIATIONS * self._deviation
