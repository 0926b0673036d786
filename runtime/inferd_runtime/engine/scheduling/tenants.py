"""Each tenant's limits: the pages that it may hold, and its share of the machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from inferd_runtime.kv.account import Account

NOTHING = -1
"""The quota of an account that may hold no pages."""


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """``kv_pages``: pages of the KV cache that the tenant's contexts may hold (0: no limit). ``weight``: its relative share."""

    kv_pages: int = 0
    weight: float = 1.0


@dataclass(frozen=True)
class Tenancy:
    """The limits of ``named`` tenants, and the ``default`` of all others."""

    default: TenantLimits = TenantLimits()
    named: Mapping[str, TenantLimits] = field(default_factory=dict)

    def limits(self, tenant: str) -> TenantLimits:
        """Return the limits of a tenant."""
        return self.named.get(tenant, self.default)


@dataclass(frozen=True)
class PageShares:
    """How many pages of a limit may be held here, where several machines share it.

    ``pages``: by tenant; others may hold one of ``parts`` even parts, nothing of 0 parts.
    """

    pages: Mapping[str, int] = field(default_factory=dict)
    parts: int = 1


class Accounts:
    """One account of pages per tenant, made when it is first asked for."""

    def __init__(self, tenancy: Tenancy) -> None:
        self._tenancy = tenancy
        self._shares = PageShares()
        self._accounts: dict[str, Account] = {}

    def __iter__(self) -> Iterator[Account]:
        return iter(self._accounts.values())

    def holders(self, tenant: str) -> int:
        """Return the number of tenants that hold pages, this one included in any case."""
        return sum(account.used > 0 or account.tenant == tenant for account in self)

    def weight(self, tenant: str) -> float:
        """Return the tenant's share of the machine, relative to the others'."""
        return self._tenancy.limits(tenant).weight

    def of(self, tenant: str) -> Account:
        """Return the tenant's account."""
        account = self._accounts.get(tenant)
        if account is None:
            account = self._accounts[tenant] = Account(tenant, self._quota(tenant))
        return account

    def share(self, shares: PageShares) -> None:
        """Have tenants hold only their shares of their pages from now on. Those that hold more keep it, and take nothing more."""
        self._shares = shares
        for tenant, account in self._accounts.items():
            account.quota = self._quota(tenant)

    def _quota(self, tenant: str) -> int:
        """Return what an account's quota is: see :class:`~inferd_runtime.kv.account.Account`."""
        whole = self._tenancy.limits(tenant).kv_pages
        if not whole:
            return 0
        parts = self._shares.parts
        return self._shares.pages.get(tenant, whole // parts if parts else 0) or NOTHING
