"""How much of the gateway's one thread reading from one client, and answering it, may take."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque

SHARE = 0.25
"""The part of the thread's time that one owner's bytes may take."""
REGULAR_SHARE = 0.02
"""That of a connection with an account of its own, of which there are a few: what watches ``/livez`` takes a tenth of it."""
REGULAR_MOST_SECONDS = 0.004
"""The most that one turn of such a connection counts for: a longer one had a collection of garbage fall on it, which at that
share would keep what watches ``/livez`` waiting for seconds.
"""
RECENT_SECONDS = 1.0
"""For so long after it was answered an owner counts as there."""
LEAST_SECONDS = 0.0002
"""What a request is expected to take, so that of many that come at once not all begin at once."""
ALLOWED_DEBT = 0.02
"""Seconds that an owner may run ahead of its share: what an ordinary request takes costs no wait."""
TURN_SECONDS = 0.004
"""What one owner's answers may take of a turn of the event loop before the next parts of them wait for another turn."""
PARTS_AT_ONCE = 4
"""Parts that waited and go on in the same turn: one of 256 KiB takes about a millisecond."""


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


class AnswerShares:
    """Divides the time of answering evenly among the owners that are there, and leaves as much for what is not counted: other
    threads, programs' output. An owner that is alone may have all of it.
    """

    def __init__(self) -> None:
        self._shares = LoopShares()
        self._seen: dict[str, float] = {}

    def begin(self, owner: str, now: float, seconds: float = LEAST_SECONDS) -> float:
        """Return the seconds to wait before a request of the owner is answered, which is expected to take ``seconds``."""
        wait = self._shares.wait(owner, now)
        self.used(owner, seconds, now)
        return wait

    def used(self, owner: str, seconds: float, now: float) -> None:
        """Note that answering took ``seconds`` until ``now``."""
        self._seen.pop(owner, None)
        self._seen[owner] = now  # as the last one
        if len(self._seen) > 1:
            self._shares.charge(owner, seconds, now, max(SHARE, 1 / (1 + len(self._seen))))

    def forget_old(self, now: float) -> None:
        """Drop owners that have not been seen for ``RECENT_SECONDS``."""
        self._seen = {owner: seen for owner, seen in self._seen.items() if seen > now - RECENT_SECONDS}
        self._shares.forget_old(now)


class LoopTurns:
    """Has the parts of one owner's answers written, and its scripts' messages handled, a few in each turn of the event loop, in
    the order in which they come: all streams of one run have something to send at the same moment. Belongs to one loop.
    """

    def __init__(self) -> None:
        self._used: defaultdict[str, float] = defaultdict(float)
        self._waiting: defaultdict[str, deque[asyncio.Future[None]]] = defaultdict(deque)
        self._turning = False

    def used(self, owner: str, seconds: float) -> None:
        """Note what an owner's answers took of this turn."""
        self._used[owner] += seconds
        self._turn_soon()

    async def turn(self, owner: str) -> None:
        """Wait until an owner's answers may go on."""
        if self._used.get(owner, 0.0) > TURN_SECONDS or owner in self._waiting:
            future = asyncio.get_running_loop().create_future()
            self._waiting[owner].append(future)
            self._turn_soon()
            await future

    def _turn_soon(self) -> None:
        if not self._turning:
            self._turning = True
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        self._turning = False
        self._used.clear()
        for owner, waiting in list(self._waiting.items()):
            for _ in range(min(len(waiting), PARTS_AT_ONCE)):
                future = waiting.popleft()
                if not future.done():
                    future.set_result(None)
            if not waiting:
                del self._waiting[owner]
        if self._waiting:
            self._turn_soon()
