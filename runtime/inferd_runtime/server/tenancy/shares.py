"""Places that tenants share, some of which are kept for those who have none: one rule for workers, queues, sockets, bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from inferd.protocol import LimitExceeded
from inferd_runtime.change_signal import ChangeSignal


@dataclass(frozen=True)
class ShareRule:
    """``share`` of ``capacity`` is kept for each of ``guarded`` further tenants.

    A tenant may take up to its share while anything is free, and more only while the kept places stay free. So whatever up to
    ``guarded`` tenants do together, another one gets its share: the last of them to go above its share left the kept places
    free, and the others then took at most ``guarded - 1`` shares of those.
    """

    capacity: int
    guarded: int
    share: int = 1

    def __post_init__(self) -> None:
        assert self.guarded == 0 or 0 < (self.guarded + 1) * self.share <= self.capacity

    def allows(self, held: int, used: int, amount: int = 1) -> bool:
        """Return True if a tenant that holds ``held`` of the ``used`` places may take ``amount`` more."""
        kept = 0 if held + amount <= self.share else self.guarded * self.share
        return used + amount <= self.capacity - kept


class SharedPlaces:
    """How many of the places that a rule divides each tenant holds. ``name`` and ``setting``: what errors call them."""

    def __init__(self, rule: ShareRule, name: str, setting: str) -> None:
        self.rule = rule
        self.used = 0
        self.freed = ChangeSignal()
        self._name = name
        self._setting = setting
        self._held: Counter[str] = Counter()

    @property
    def tenants(self) -> set[str]:
        """The tenants that hold any."""
        return {*self._held}

    def held(self, tenant: str) -> int:
        """Return how many places a tenant holds."""
        return self._held[tenant]

    def take(self, tenant: str, amount: int = 1) -> None:
        """Take places. Raises LimitExceeded, and changes nothing, where the rule does not allow it."""
        if not self.rule.allows(self._held[tenant], self.used, amount):
            raise self._no_room()
        self._held[tenant] += amount
        self.used += amount

    def _no_room(self) -> LimitExceeded:
        """Return the error. It is raised without a variable for it: that would be a cycle which keeps the callers' frames."""
        text = (
            f"{self.used} of the server's {self.rule.capacity} {self._name} are in use, and the rest is kept for others"
        )
        error = LimitExceeded(text, limit=self._name, value=self.rule.capacity, raise_with=self._setting)
        error.detail["retry_after_s"] = 1.0
        return error

    def give_back(self, tenant: str, amount: int = 1) -> None:
        """Give places back that the tenant holds."""
        assert self._held[tenant] >= amount
        self.used -= amount
        self._held[tenant] -= amount
        if not self._held[tenant]:
            del self._held[tenant]
        self.freed.wake()

    def has_room(self, tenant: str) -> bool:
        """Return True if the rule lets a tenant take a place."""
        return self.rule.allows(self._held[tenant], self.used)

    @contextmanager
    def holding(self, tenant: str, amount: int = 1) -> Iterator[None]:
        """Hold places while the body runs. Raises LimitExceeded."""
        self.take(tenant, amount)
        try:
            yield
        finally:
            self.give_back(tenant, amount)
