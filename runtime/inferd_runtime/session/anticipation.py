"""Which tenant the next step waits a moment for: the one whose turn it is, where it asks for one thing after the other.

Who sends its next request when it has the answer to the last one wants nothing in between, for less than a millisecond. If the
thread then went on with others, each of its requests would wait for the end of a step of theirs, and however far behind it was,
it would have a small part of its share (anticipatory scheduling: Iyer and Druschel, SOSP 2001). The tenant pays for the wait,
so that nobody has less than a fair share by it. Where steps and requests are short there is nothing to win and no wait; little
of the time goes into waiting at all; and where a tenant was awaited in vain, its next pauses are passed over.
"""

from __future__ import annotations

from collections.abc import Callable

from inferd_runtime.engine.scheduling.fairness import FairClock

LEAST_SECONDS, MOST_SECONDS = 1e-3, 4e-3
"""A wait for one request takes a quarter of the time of a long turn of the loop at most, and no more than this; where that is
less than the least, there is none.
"""
TURN_PART = 1 / 4
HALVING_SECONDS = 0.1
"""A long turn counts half as much after so long."""
SHARE = 0.1
"""The part of the time that may go into waiting."""
PASSED = 3
"""So many pauses of a tenant are passed over after a wait in vain."""


class Anticipation:
    """Belongs to the thread of the step loop. ``wants``: whether a tenant has a request or a job that could run now."""

    def __init__(self, clock: FairClock[str], wants: Callable[[str], bool], seconds: Callable[[], float]) -> None:
        self._clock = clock
        self._wants = wants
        self._seconds = seconds
        self._since = seconds()
        self._credit = MOST_SECONDS
        self._long_turn = 0.0
        self._to_pass: dict[str, int] = {}

    @property
    def patience(self) -> float:
        """Seconds that one wait takes at most."""
        return min(MOST_SECONDS, TURN_PART * self._long_turn)

    def turned(self, seconds: float) -> None:
        """Note what a turn of the loop took without its waits, and the time that has passed since the last one."""
        now = self._seconds()
        elapsed, self._since = now - self._since, now
        self._long_turn = max(seconds, self._long_turn * 0.5 ** (elapsed / HALVING_SECONDS))
        self._credit = min(MOST_SECONDS, self._credit + SHARE * elapsed)

    def awaited(self) -> str | None:
        """Return the tenant to wait for, if it was served since the last call; None for nobody."""
        tenant = self._clock.first_of_served()
        if tenant is None or self._credit <= 0 or self.patience < LEAST_SECONDS or self._wants(tenant):
            return None
        to_pass = self._to_pass.pop(tenant, 0)
        if to_pass > 1:
            self._to_pass[tenant] = to_pass - 1
        return None if to_pass else tenant

    def waited(self, tenant: str, seconds: float, *, vain: bool) -> None:
        """Charge a tenant for a wait, and learn from it."""
        self._clock.charge(tenant, seconds)
        self._credit -= seconds
        if vain:
            self._to_pass[tenant] = PASSED
