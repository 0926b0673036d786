"""Anticipatory scheduling: which tenant the next step waits a moment for (Iyer and Druschel, SOSP 2001).

A client that sends each request only after the answer to the one before has nothing queued in between, for less than a
millisecond. If the step loop then turned to other tenants, each of its requests would wait for the end of a step of theirs, and
the client would get a small part of its fair share, however far behind its clock is. So the loop waits for a tenant that comes
before all others by the clock. The wait is charged to that tenant, so that no other gets less than its fair share. There is no
wait where others take little time at once, waits take a small part of the time in all, and after a wait in vain the tenant's
next pauses are passed over.
"""

from __future__ import annotations

from collections.abc import Callable

from inferd_runtime.engine.scheduling.fairness import FairClock

LEAST_SECONDS, MOST_SECONDS = 1e-3, 4e-3
"""The longest wait for one request is between these; one that would be shorter is left out."""
WAIT_PART = 1 / 4
"""The longest wait, as a part of the time that another tenant lately took at once: of what a request would wait for otherwise."""
HALVING_SECONDS = 0.1
"""After so long the time that a tenant took at once counts half."""
SHARE = 0.1
"""The part of all time that may go into waits."""
PASSED = 3
"""Pauses of a tenant that are passed over after a wait in vain."""


class Anticipation:
    """Belongs to the thread of the step loop. ``needs_no_wait``: whether something of a tenant could run now."""

    def __init__(
        self, clock: FairClock[str], needs_no_wait: Callable[[str], bool], seconds: Callable[[], float]
    ) -> None:
        self.patience = 0.0
        """Seconds to wait at most for the tenant that :meth:`awaited` returned."""
        self._clock = clock
        self._needs_no_wait = needs_no_wait
        self._seconds = seconds
        self._since = seconds()
        self._credit = MOST_SECONDS
        self._at_once: dict[str, float] = {}
        """The longest time that each tenant lately took at once."""
        self._to_pass: dict[str, int] = {}

    def awaited(self) -> str | None:
        """Return the tenant to wait for, if it was served since the last call; None for nobody."""
        served = self._clock.take_served()
        if not self._clock.contended:
            return None
        self._note(served)
        tenant = self._clock.furthest_behind(served)
        if tenant is None or self._credit <= 0 or self._needs_no_wait(tenant):
            return None
        others = self._clock.excluded_by(tenant)
        self.patience = min(
            MOST_SECONDS, WAIT_PART * max((self._at_once.get(other, 0.0) for other in others), default=0.0)
        )
        return None if self.patience <= LEAST_SECONDS or self._passes(tenant) else tenant

    def waited(self, tenant: str, seconds: float, *, vain: bool) -> None:
        """Charge a tenant for a wait, and learn from it."""
        self._clock.charge(tenant, seconds)
        self._clock.take_served()  # a wait is no answer behind which to wait again
        self._credit -= seconds
        if vain:
            self._to_pass[tenant] = PASSED

    def _note(self, served: dict[str, float]) -> None:
        now = self._seconds()
        elapsed, self._since = now - self._since, now
        self._credit = min(MOST_SECONDS, self._credit + SHARE * elapsed)
        kept = 0.5 ** (elapsed / HALVING_SECONDS)
        self._at_once = {
            tenant: kept * took for tenant, took in self._at_once.items() if WAIT_PART * took > LEAST_SECONDS
        }
        for tenant, seconds in served.items():
            self._at_once[tenant] = max(seconds, self._at_once.get(tenant, 0.0))

    def _passes(self, tenant: str) -> bool:
        """Return True, and count, if a pause of a tenant is passed over."""
        left = self._to_pass.pop(tenant, 0)
        if left > 1:
            self._to_pass[tenant] = left - 1
        return left > 0
