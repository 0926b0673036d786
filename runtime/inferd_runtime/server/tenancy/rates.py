"""What a tenant may do per minute: a bucket that fills at an even rate, and never above one minute's worth."""

from __future__ import annotations

from dataclasses import dataclass, field

MINUTE = 60.0


@dataclass
class MinuteBucket:
    """Of one tenant. Times are monotonic seconds; ``per_minute`` comes with each call, because the operator may change it.

    A bucket holds what may still be used now. It is full at first, and below 0 after a charge that nobody could foresee.
    """

    _missing: float = 0.0
    _at: float = field(default=0.0)

    def wait(self, per_minute: float, now: float, amount: float = 1.0) -> float:
        """Return the seconds until ``amount`` may be used (at most one minute's worth is waited for); 0 if now."""
        self._fill(per_minute, now)
        short = self._missing + min(amount, per_minute) - per_minute
        return max(short, 0.0) * MINUTE / per_minute

    def charge(self, per_minute: float, now: float, amount: float = 1.0) -> None:
        """Note that ``amount`` was used."""
        self._fill(per_minute, now)
        self._missing += amount

    def used(self, per_minute: float, now: float) -> float:
        """Return how much of the bucket is used."""
        self._fill(per_minute, now)
        return self._missing

    def _fill(self, per_minute: float, now: float) -> None:
        self._missing = max(self._missing - max(now - self._at, 0.0) * per_minute / MINUTE, 0.0)
        self._at = max(self._at, now)
