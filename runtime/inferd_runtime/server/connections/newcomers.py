"""Connections that have not shown a token yet: a bounded number, whose oldest make room for new ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable


class Newcomers:
    """Who has connected and not said who it is, by address, the one first that has said nothing whole for longest.

    When there are ``most``, or ``per_address`` of one address, a new one takes the place of an old one: of its own address if
    that has too many, else of the address that has most. An honest client shows its token in its first bytes, so it goes
    only if ``per_address`` others connect from its address before these arrive; one that dawdles goes first.
    """

    def __init__(self, most: int, per_address: int) -> None:
        assert 0 < per_address <= most
        self._most = most
        self._per_address = per_address
        self._count = 0
        self._waiting: defaultdict[str, dict[Hashable, None]] = defaultdict(dict)

    def __len__(self) -> int:
        return self._count

    def of(self, address: str) -> int:
        """Return how many an address has."""
        return len(self._waiting.get(address, ()))

    def arrive(self, address: str, connection: Hashable) -> list[Hashable]:
        """Add a connection; returns those that have to go for it, which are forgotten."""
        gone: list[Hashable] = []
        if self.of(address) >= self._per_address:
            gone.append(self._dismiss(address))
        elif self._count >= self._most:
            gone.append(self._dismiss(max(self._waiting, key=self.of)))
        self._waiting[address][connection] = None
        self._count += 1
        return gone

    def heard(self, address: str, connection: Hashable) -> None:
        """Note that a connection has sent a whole head: it is the youngest now. One that only asks ``/livez`` needs no token."""
        waiting = self._waiting.get(address)
        if waiting is not None and connection in waiting:
            del waiting[connection]
            waiting[connection] = None

    def leave(self, address: str, connection: Hashable) -> None:
        """Forget a connection that has shown its token, has ended, or has had to go; nothing happens the second time."""
        waiting = self._waiting.get(address)
        if waiting is None or connection not in waiting:
            return
        del waiting[connection]
        self._count -= 1
        if not waiting:
            del self._waiting[address]

    def dismiss_one(self) -> Hashable | None:
        """Forget the oldest connection of the address that has most, and return it; None if there is none."""
        return self._dismiss(max(self._waiting, key=self.of)) if self._waiting else None

    def _dismiss(self, address: str) -> Hashable:
        oldest = next(iter(self._waiting[address]))
        self.leave(address, oldest)
        return oldest
