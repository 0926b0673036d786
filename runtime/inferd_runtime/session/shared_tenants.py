"""Tenants that several engines serve: what they had elsewhere counts here, and their limits are divided."""

from __future__ import annotations

from collections.abc import Sequence

from inferd_runtime.engine.scheduling.fairness import FairClock
from inferd_runtime.engine.scheduling.tenants import Accounts, PageShares
from inferd_runtime.session.wire import ShareTenants, TenantsHere

MOST_ELSEWHERE_SECONDS = 1.0
"""How far what a tenant had elsewhere puts its clock ahead: a few times the interval at which it is told."""


class SharedTenants:
    """The tenants' clock of one engine process, and the accounts of each of its models."""

    def __init__(self, clock: FairClock[str] | None, accounts: Sequence[Accounts]) -> None:
        self._clock = clock
        self._accounts = accounts

    def share(self, told: ShareTenants) -> TenantsHere:
        """Take in what the others do, and return what was done here."""
        for accounts in self._accounts:
            accounts.share(PageShares(told.pages, told.parts))
        if self._clock is None:
            return TenantsHere(pages=self._pages())
        for tenant, seconds in told.elsewhere.items():
            self._clock.charge_elsewhere(tenant, seconds, MOST_ELSEWHERE_SECONDS)
        return TenantsHere(self._clock.take_given(), self._pages())

    def _pages(self) -> dict[str, int]:
        held: dict[str, int] = {}
        for accounts in self._accounts:
            for account in accounts:
                if account.used:
                    held[account.tenant] = max(account.used, held.get(account.tenant, 0))
        return held
