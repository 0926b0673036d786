"""How much of what is over a store keeps, by tenant: finished runs, or responses."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import msgspec


class Kept(msgspec.Struct, frozen=True, array_like=True):
    """What is kept of one tenant's: how many, and their bytes; and the same of what was forgotten since the process started.

    ``at``: when the newest came, in monotonic seconds of this process.
    """

    count: int = 0
    size: int = 0
    forgotten: int = 0
    forgotten_size: int = 0
    at: float = 0.0

    @property
    def ever(self) -> int:
        """How many there were."""
        return self.count + self.forgotten


class KeptCounts:
    """Belongs to the event loop of the store that tells it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._of: dict[str, Kept] = {}
        self._pending: dict[str, int] = {}
        """How many are being forgotten."""

    @property
    def of(self) -> Mapping[str, Kept]:
        """By tenant."""
        return self._of

    def found(self, totals: Mapping[str, tuple[int, int]]) -> None:
        """Take in how many, and how many bytes, of each tenant a store holds."""
        for tenant, (count, size) in totals.items():
            known = self._of.get(tenant, Kept())
            self._note(tenant, Kept(count, size, known.forgotten, known.forgotten_size))

    def pruned(self, tenant: str, count: int, size: int, forgotten: int, forgotten_size: int) -> None:
        """Take in what is left of a tenant's, and how much was forgotten just now."""
        known = self._of.get(tenant, Kept())
        self._note(tenant, Kept(count, size, known.forgotten + forgotten, known.forgotten_size + forgotten_size))

    def _note(self, tenant: str, kept: Kept) -> None:
        known = self._of.get(tenant, Kept())
        at = self._clock() if kept.ever > known.ever else known.at
        self._of[tenant] = msgspec.structs.replace(kept, at=at)

    def forget(self, tenant: str, target: int, start: Callable[[int], bool]) -> None:
        """Have the oldest forgotten until ``target`` of the tenant's were, since the process started.

        ``start`` begins with so many, and returns False if it cannot; :meth:`settled` is called once that is over.
        """
        pending = self._pending.get(tenant, 0)
        more = target - self._of.get(tenant, Kept()).forgotten - pending
        if more > 0 and start(more):
            self._pending[tenant] = pending + more

    def settled(self, tenant: str, count: int) -> None:
        """Note that what was begun by :meth:`forget` is over, whether it worked or not."""
        self._pending[tenant] -= count
        if not self._pending[tenant]:
            del self._pending[tenant]
