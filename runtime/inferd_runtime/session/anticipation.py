"""Which tenant the next step waits a moment for: the one whose turn it is, where it asks for one thing after the other.

Who sends its next request when it has the answer to the last one wants nothing in between, for less than a millisecond. If the
thread then went on with others, each of its requests would wait for the end of what they do, and however far behind it was, it
would have a small part of its share (anticipatory scheduling: Iyer and Druschel, SOSP 2001). The tenant pays for the wait, so
that nobody has less than a fair share by it. Where what others do is short there is nothing to win and no wait; little of the
time goes into waiting at all; and where a tenant was awaited in vain, its next pauses are passed over.
"""

from __future__ import annotations

from collections.abc import Callable

from inferd_runtime.engine.scheduling.fairness import FairClock

LEAST_SECONDS, MOST_SECONDS = 1e-3, 4e-3
"""A wait for one request takes a quarter of what others lately took at a time, and no more than this; where that is not more than
the least, there is none.
"""
PART = 1 / 4
HALVING_SECONDS = 0.1
"""What somebody took at a time counts half as much after so long."""
SHARE = 0.1
"""The part of the time that may go into waiting."""
PASSED = 3
"""So many pauses of a tenant are passed over after a wait in vain."""


class Anticipation:
    """Belongs to the thread of the step loop. ``needs_none``: whether a tenant needs no wait, as something of it could run."""

    def __init__(self, clock: FairClock[str], needs_none: Callable[[str], bool], seconds: Callable[[], float]) -> None:
        self.patience = 0.0
        """Seconds to wait at most for the tenant that :meth:`awaited` returned."""
        self._clock = clock
        self._needs_none = needs_none
        self._seconds = seconds
        self._since = seconds()
        self._credit = MOST_SECONDS
        self._long: dict[str, float] = {}
        self._to_pass: dict[str, int] = {}

    def awaited(self) -> str | None:
        """Return the tenant to wait for, if it was served since the last call; None for nobody."""
        served = self._clock.take_served()
        self._note(served)
        tenant = self._clock.furthest_behind(served)
        if tenant is None or self._credit <= 0 or self._needs_none(tenant):
            return None
        others = self._clock.excluded_by(tenant)
        self.patience = min(MOST_SECONDS, PART * max((self._long.get(other, 0.0) for other in others), default=0.0))
        return None if self.patience <= LEAST_SECONDS or self._passes(tenant) else tenant

    def waited(self, tenant: str, seconds: float, *, vain: bool) -> None:
        """Charge a tenant for a wait, and learn from it."""
        self._clock.charge(tenant, seconds)
        self._credit -= seconds
        if vain:
            self._to_pass[tenant] = PASSED

    def _note(self, served: dict[str, float]) -> None:
        now = self._seconds()
        elapsed, self._since = now - self._since, now
        self._credit = min(MOST_SECONDS, self._credit + SHARE * elapsed)
        kept = 0.5 ** (elapsed / HALVING_SECONDS)
        self._long = {tenant: kept * long for tenant, long in self._long.items() if PART * long > LEAST_SECONDS}
        for tenant, seconds in served.items():
            self._long[tenant] = max(seconds, self._long.get(tenant, 0.0))

    def _passes(self, tenant: str) -> bool:
        """Return True, and count, if a pause of a tenant is passed over."""
        left = self._to_pass.pop(tenant, 0)
        if left > 1:
            self._to_pass[tenant] = left - 1
        return left > 0
