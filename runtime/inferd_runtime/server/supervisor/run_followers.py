"""Where those are that follow a run's events: what they have not read is kept, and the program waits for them. Pure."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

FOLLOWER_SECONDS = 15.0
"""How long a run waits for a follower that reads nothing; then its events are dropped as if it were not there."""
FIRST_SECONDS = 2.0
"""How long it waits for its first follower, who launches it and then asks for its events."""
FIRST_OF_PROGRAM = 1
"""Index of the first event that the program may have said: the one before says that it has started."""


@dataclass(eq=False)
class Follower:
    """Somebody who reads the events of a run in turn, and is waited for ``patience`` seconds.

    ``index``: of the next event; ``moved``: when it last read, or had read all.
    """

    index: int
    patience: float = FOLLOWER_SECONDS
    moved: float = field(default_factory=time.monotonic)

    def move(self, index: int) -> None:
        """Note that everything before ``index`` was read."""
        self.index, self.moved = index, time.monotonic()


class Followers:
    """The followers that a run waits for, the first one before it is there."""

    def __init__(self) -> None:
        self._expected = Follower(0, FIRST_SECONDS)
        self._returning: Follower | None = None
        self._waited_for = {self._expected}

    @property
    def first(self) -> int | None:
        """Index of the oldest event that one of them has not read; None without followers."""
        return min((follower.index for follower in self._waited_for), default=None)

    def expect_none(self) -> None:
        """Wait no longer for the first follower, who is to read from the beginning."""
        self._waited_for.discard(self._expected)

    def returns_at(self, index: int) -> None:
        """Wait for a follower that asks for some events at a time, and is to come back for those from ``index`` on."""
        if self._returning is None:
            self._returning = Follower(index)
        self._returning.move(index)
        self.expect_none()
        self._waited_for.add(self._returning)

    @contextmanager
    def joined(self, index: int) -> Iterator[Follower]:
        """Wait for one more follower, which begins at ``index``, while the body runs."""
        follower = Follower(index)
        self._waited_for.add(follower)
        if index <= FIRST_OF_PROGRAM:
            self.expect_none()
        try:
            yield follower
        finally:
            self._waited_for.discard(follower)

    def expire(self, end: int, now: float) -> bool:
        """Wait no longer for those that have not read what is before ``end`` for too long; True if there were any."""
        for follower in self._waited_for:
            if follower.index >= end:
                follower.moved = now
        slow = {follower for follower in self._waited_for if now - follower.moved > follower.patience}
        self._waited_for -= slow
        return bool(slow)
