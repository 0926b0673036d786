"""Each tenant's limits: the pages that it may hold, and its share of the machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from inferd_runtime.kv.account import Account


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


class Accounts:
    """One account of pages per tenant, made when it is first asked for."""

    def __init__(self, tenancy: Tenancy) -> None:
        self._tenancy = tenancy
        self._accounts: dict[str, Account] = {}

    def __iter__(self) -> Iterator[Account]:
        return iter(self._accounts.values())

    def weight(self, tenant: str) -> float:
        """Return the tenant's share of the machine, relative to the others'."""
        return self._tenancy.limits(tenant).weight

    def of(self, tenant: str) -> Account:
        """Return the tenant's account."""
        account = self._accounts.get(tenant)
        if account is None:
            account = self._accounts[tenant] = Account(tenant, self._tenancy.limits(tenant).kv_pages)
        return account
