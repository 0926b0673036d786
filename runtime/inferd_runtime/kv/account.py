"""A tenant's account of KV pages: what it holds, wherever it is held, and how much it may hold."""

from __future__ import annotations

from dataclasses import dataclass


class QuotaExceeded(Exception):
    """Raised if a tenant would hold more pages than its quota; nothing was taken."""


@dataclass(slots=True)
class Account:
    """``used`` pages of ``quota`` (0: no limit; below 0: none). A page that several tables of the tenant share counts once.

    Pages of a context that was moved out of the cache count on, so that pressure by others cannot make room for more.
    ``tokens``: of all the tenant's contexts, those that they share counted for each.
    """

    tenant: str = ""
    quota: int = 0
    used: int = 0
    tokens: int = 0

    def charge(self, pages: int) -> None:
        """Add pages to the account. Raises QuotaExceeded and adds none if the quota does not allow all of them."""
        if self.short(pages):
            raise QuotaExceeded(f"{pages} more KV pages wanted, {self.used} of {self.quota} used")
        self.used += pages

    def short(self, pages: int) -> bool:
        """Return True if :meth:`charge` would raise."""
        return bool(self.quota) and self.used + pages > self.quota

    def refund(self, pages: int) -> None:
        """Take pages off the account."""
        self.used -= pages


@dataclass(slots=True)
class Allowance:
    """Pages that a context may take beyond what its account would charge, because it held them before it left the cache.

    ``paid`` are on the account already. ``forgiven`` were shared with others before, and are not charged now that pressure by
    other tenants has ended the sharing.
    """

    paid: int = 0
    forgiven: int = 0
