"""A tenant's quotas at one replica: its share of what is divided, and no limit on what the front counts for the whole cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from inferd_runtime.cluster.messages import FETCH_RATE, FETCHES, KV_PAGES, RUNS, FrontOrder
from inferd_runtime.cluster.quota_shares import QuotaShare, QuotaUse, first_share
from inferd_runtime.server.tenancy.quotas import NOTHING, Quotas, QuotasOf, same_for_all

DIVIDED = (RUNS, KV_PAGES, FETCHES, FETCH_RATE)


@dataclass
class ReplicaQuotas:
    """What the front has told this replica. ``whole`` are the quotas in the whole cluster; ``pages`` of KV, where it says none.

    All of a tenant's runs may wait here, for a share or for a worker: the front admits no more than there may be. What is
    remembered of runs that are over may all be here, too: the front tells what is to be forgotten.
    """

    whole: QuotasOf = field(default_factory=lambda: same_for_all(Quotas()))
    pages: int = 0
    _parts: int = 0
    _shares: Mapping[str, Mapping[str, QuotaShare]] = field(default_factory=dict)
    _elsewhere: Mapping[str, float] = field(default_factory=dict)
    _charged: dict[str, float] = field(default_factory=dict)
    _front: str = ""

    @property
    def parts(self) -> int:
        """The parts that quotas are divided into where no share is told; 0: this replica has none of them."""
        return self._parts

    def over(self, whole: QuotasOf) -> QuotasOf:
        """Return the quotas at this replica, of the cluster's ``whole`` ones."""
        self.whole = whole
        return self.quotas

    def quotas(self, tenant: str) -> Quotas:
        """Return a tenant's quotas here."""
        whole = self.whole(tenant)
        return replace(
            whole, connections=0, programs=0, tokens_per_minute=0, launches_per_minute=0,
            waiting=whole.waiting + whole.runs if whole.waiting and whole.runs else whole.waiting,
            runs=self._allowed(tenant, RUNS), fetches=self._allowed(tenant, FETCHES),
            fetches_per_minute=self._allowed(tenant, FETCH_RATE),
        )  # fmt: skip

    def _allowed(self, tenant: str, quota: str) -> int:
        return (self.share(tenant, quota).amount or NOTHING) if self.total(tenant, quota) else 0

    def share(self, tenant: str, quota: str) -> QuotaShare:
        """Return the share of a quota that is divided: the one that the front told, else an even part."""
        told = self._shares.get(tenant, {}).get(quota)
        return told or QuotaShare(0, first_share(self.total(tenant, quota), self._parts))

    def total(self, tenant: str, quota: str) -> int:
        """Return what a tenant may hold in the whole cluster; 0: no limit."""
        whole: int = getattr(self.whole(tenant), quota)
        return whole or (self.pages if quota == KV_PAGES else 0)

    def ordered(self, order: FrontOrder) -> None:
        """Take in what the front says. Its shares are older than those that are here only if another front's are."""
        if order.front != self._front:
            self._front, self._charged = order.front, dict(order.elsewhere)
        self._parts, self._elsewhere = order.parts, order.elsewhere
        self._shares = {
            tenant: {what: self._newer(tenant, what, share) for what, share in told.items()}
            for tenant, told in order.shares.items()
        }

    def uses(
        self, used: Mapping[str, Mapping[str, int]], wanted: Mapping[str, Mapping[str, int]]
    ) -> dict[str, dict[str, QuotaUse]]:
        """Return what to tell the front: of all tenants that use something here or have been told a share.

        ``used``: by quota and tenant; ``wanted``: what they would use if there was no limit, where that is more.
        """
        tenants = {tenant for of in (*used.values(), *wanted.values(), self._shares) for tenant in of}
        return {tenant: self._uses_of(tenant, used, wanted) for tenant in sorted(tenants)}

    def short_of_workers(self, running: Mapping[str, int], waiting: Mapping[str, int]) -> dict[str, int]:
        """Return how many runs of each tenant wait though its share has room for them."""
        found = {}
        for tenant, count in waiting.items():
            most = self.quotas(tenant).runs
            found[tenant] = min(count, max(most - running.get(tenant, 0), 0)) if most else count
        return found

    def page_shares(self) -> dict[str, int]:
        """Return how many KV pages tenants may hold here, of those that have been told a share."""
        return {tenant: told[KV_PAGES].amount for tenant, told in self._shares.items() if KV_PAGES in told}

    def take_elsewhere(self) -> dict[str, float]:
        """Return the seconds that tenants have received on other replicas since this was asked last."""
        since = {name: total - self._charged.get(name, 0.0) for name, total in self._elsewhere.items()}
        self._charged = dict(self._elsewhere)
        return {name: seconds for name, seconds in since.items() if seconds > 0}

    def _uses_of(
        self, tenant: str, used: Mapping[str, Mapping[str, int]], wanted: Mapping[str, Mapping[str, int]]
    ) -> dict[str, QuotaUse]:
        found = {}
        for what in DIVIDED:
            if self.total(tenant, what):
                here = used.get(what, {}).get(tenant, 0)
                more = wanted.get(what, {}).get(tenant, here)
                found[what] = QuotaUse(self.share(tenant, what), here, more)
        return found

    def _newer(self, tenant: str, quota: str, told: QuotaShare) -> QuotaShare:
        known = self._shares.get(tenant, {}).get(quota)
        return told if known is None or told.number >= known.number else known
