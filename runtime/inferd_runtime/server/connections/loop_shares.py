"""How much of the gateway's one thread reading from one client may take."""

from __future__ import annotations

SHARE = 0.25
"""The part of the thread's time that one owner's bytes may take."""
REGULAR_SHARE = 0.02
"""That of a connection with an account of its own, of which there are a few: what watches ``/livez`` takes a tenth of it."""
ALLOWED_DEBT = 0.02
"""Seconds that an owner may run ahead of its share: what an ordinary request takes costs no wait."""


class LoopShares:
    """Says how long to leave an owner's bytes unread after they took time: an account of seconds, by owner."""

    def __init__(self) -> None:
        self._paid_at: dict[str, float] = {}

    def charge(self, owner: str, seconds: float, now: float, share: float = SHARE) -> float:
        """Note that an owner's bytes took ``seconds`` until ``now``; returns the seconds to wait before the next ones."""
        paid_at = max(self._paid_at.get(owner, 0.0), now) + seconds / share
        self._paid_at[owner] = paid_at
        return self.wait(owner, now)

    def wait(self, owner: str, now: float) -> float:
        """Return the seconds until an owner's bytes may be read."""
        return max(self._paid_at.get(owner, 0.0) - now - ALLOWED_DEBT, 0.0)

    def forget_old(self, now: float) -> None:
        """Drop the accounts that are even."""
        self._paid_at = {owner: paid_at for owner, paid_at in self._paid_at.items() if paid_at > now}
