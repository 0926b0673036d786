"""Unauthenticated connections, those that have sent no token yet: a bounded number, whose oldest make room for new ones."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

REGULARS = 16
REGULARS_PER_ADDRESS = 4
"""Connections, of all addresses and of one, that are never closed to make room, as they have sent more than one request."""


@dataclass
class _Address:
    """The connections of one address, oldest first: those that have sent no whole head, those that have, and the regular ones."""

    silent: dict[Hashable, None] = field(default_factory=dict)
    heard: dict[Hashable, None] = field(default_factory=dict)
    regular: dict[Hashable, None] = field(default_factory=dict)

    def __len__(self) -> int:
        return self.replaceable + len(self.regular)

    @property
    def replaceable(self) -> int:
        """How many may have to make room."""
        return len(self.silent) + len(self.heard)


class UnauthenticatedConnections:
    """The table of these connections.

    When there are ``most``, or ``per_address`` from one address, a new one takes the place of an old one: of its own address
    if that has too many, else of the address that has most. Of those the oldest that never sent a whole head is closed; one
    that did only if there is no other. The first few that send a second request count as regular, as monitors of ``/livez``
    do, and are not closed.
    """

    def __init__(self, most: int, per_address: int) -> None:
        assert 0 < per_address <= most
        self._most = most
        self._per_address = per_address
        self._most_regular = min(REGULARS, most // 2)
        self._most_regular_here = min(REGULARS_PER_ADDRESS, per_address // 2)
        self._count = 0
        self._regular = 0
        self._addresses: dict[str, _Address] = {}

    def __len__(self) -> int:
        return self._count

    def of(self, address: str) -> int:
        """Return how many an address has."""
        return len(self._addresses.get(address, ()))

    def arrive(self, address: str, connection: Hashable) -> list[Hashable]:
        """Add a connection; returns those that have to go for it, which are forgotten."""
        gone: list[Hashable] = []
        if self.of(address) >= self._per_address:
            gone.append(self._dismiss(address))
        elif self._count >= self._most:
            gone.append(self._dismiss(self._fullest()))
        self._addresses.setdefault(address, _Address()).silent[connection] = None
        self._count += 1
        return gone

    def heard(self, address: str, connection: Hashable) -> None:
        """Note that a connection has sent a whole head: it is the youngest of those now, or a regular one."""
        here = self._addresses.get(address, _Address())
        if connection in here.silent:
            del here.silent[connection]
            here.heard[connection] = None
        elif connection in here.heard:
            del here.heard[connection]
            if self._regular < self._most_regular and len(here.regular) < self._most_regular_here:
                self._regular += 1
                here.regular[connection] = None
            else:
                here.heard[connection] = None

    def is_regular(self, address: str, connection: Hashable) -> bool:
        """Return True if a connection does not have to make room."""
        return connection in self._addresses.get(address, _Address()).regular

    def leave(self, address: str, connection: Hashable) -> None:
        """Forget a connection that has shown its token, has ended, or has had to go; nothing happens the second time."""
        here = self._addresses.get(address, _Address())
        for kind in (here.silent, here.heard, here.regular):
            if connection in kind:
                del kind[connection]
                self._count -= 1
                self._regular -= kind is here.regular
        if not here:
            self._addresses.pop(address, None)

    def dismiss_one(self) -> Hashable | None:
        """Forget one connection of the address that has most, and return it; None if there is none."""
        return self._dismiss(self._fullest()) if self._addresses else None

    def _fullest(self) -> str:
        return max(self._addresses, key=lambda address: self._addresses[address].replaceable)

    def _dismiss(self, address: str) -> Hashable:
        here = self._addresses[address]
        oldest = next(iter(here.silent or here.heard or here.regular))
        self.leave(address, oldest)
        return oldest
