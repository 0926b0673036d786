"""What each tenant may hold and how much of the machine is its share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from inferd_runtime.kv.account import Account


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """``kv_pages``: pages of the KV cache that the tenant's contexts may hold (0: no limit). ``weight``: its share."""

    kv_pages: int = 0
    weight: float = 1.0


@dataclass(frozen=True)
class Tenancy:
    """The limits of named tenants, and of all others."""

    default: TenantLimits = TenantLimits()
    named: Mapping[str, TenantLimits] = field(default_factory=dict)

    def limits(self, tenant: str) -> TenantLimits:
        """What applies to a tenant."""
        return self.named.get(tenant, self.default)


class Accounts:
    """One account of pages per tenant, made when the tenant is first seen."""

    def __init__(self, tenancy: Tenancy) -> None:
        self._tenancy = tenancy
        self._accounts: dict[str, Account] = {}

    def __iter__(self) -> Iterator[Account]:
        return iter(self._accounts.values())

    def weight(self, tenant: str) -> float:
        """The tenant's share of the machine, relative to the others'."""
        return self._tenancy.limits(tenant).weight

    def of(self, tenant: str) -> Account:
        """The tenant's account."""
        account = self._accounts.get(tenant)
        if account is None:
            account = self._accounts[tenant] = Account(tenant, self._tenancy.limits(tenant).kv_pages)
        return account
