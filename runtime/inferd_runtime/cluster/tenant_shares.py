"""What all tenants may hold in a cluster, divided between its replicas; and what each had on the others. Pure, of the front."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from inferd_runtime.cluster.messages import ReplicaReport
from inferd_runtime.cluster.quota_shares import QuotaShare, QuotaUse, SharedQuota, first_share

IDLE_DIVISIONS = 240
"""Divisions after which a tenant is forgotten that uses nothing anywhere: a minute's."""
Totals = Callable[[str], Mapping[str, int]]
"""What a tenant may hold in the whole cluster, by quota; what has no limit is left out."""
Shares = dict[str, dict[str, QuotaShare]]
"""By tenant and quota."""


@dataclass
class _Shared:
    quotas: dict[str, SharedQuota]
    idle: int = 0


class TenantShares:
    """A tenant is known from the first report that names it on. Until then each replica has :func:`first_share` of its quotas;
    one that joins has none before all others know of one part more.
    """

    def __init__(self, totals: Totals) -> None:
        self._totals = totals
        self._replicas: dict[str, int] = {}
        """By replica the least parts that it may believe in; 0 while it was told of none."""
        self._tenants: dict[str, _Shared] = {}

    def join(self, replica: str) -> None:
        """Add a replica, which is to hear its shares before it starts anything: it has none of what is divided already."""
        if replica in self._replicas:
            return
        self._replicas[replica] = 0
        for tenant in self._tenants.values():
            for quota in tenant.quotas.values():
                quota.join(replica)

    def leave(self, replica: str) -> None:
        """Remove a replica that has ended."""
        self._replicas.pop(replica, None)
        for tenant in self._tenants.values():
            for quota in tenant.quotas.values():
                quota.leave(replica)

    def heard(self, report: ReplicaReport) -> None:
        """Take in what a replica uses and wants."""
        if report.name not in self._replicas:
            return
        self._replicas[report.name] = report.parts or self._replicas[report.name]
        for name, uses in report.uses.items():
            tenant = self._tenants.get(name)
            if tenant is None:
                self._tenants[name] = self._begun(name, report.name, uses)
                continue
            for what, quota in tenant.quotas.items():
                if what in uses:
                    quota.report(report.name, uses[what])

    def divide(self) -> None:
        """Change all shares to what is used and wanted. Call it at a fixed interval."""
        for name, tenant in list(self._tenants.items()):
            totals = self._totals(name)
            for what, quota in tenant.quotas.items():
                quota.total = totals.get(what, quota.total)
                quota.divide()
            tenant.idle = tenant.idle + 1 if all(quota.idle for quota in tenant.quotas.values()) else 0
            if tenant.idle > IDLE_DIVISIONS:
                del self._tenants[name]

    def of(self, replica: str) -> Shares:
        """Return the shares of a replica, by tenant and quota."""
        if replica not in self._replicas:
            return {}
        return {
            name: {what: quota.share_of(replica) for what, quota in tenant.quotas.items()}
            for name, tenant in self._tenants.items()
        }

    def parts_for(self, replica: str) -> int:
        """Return the parts that a replica is to be told of."""
        count, believed = len(self._replicas), self._replicas.get(replica, 0)
        settled = all(not parts or parts >= count for name, parts in self._replicas.items() if name != replica)
        if replica not in self._replicas or not (believed or settled):
            return 0
        self._replicas[replica] = min(count, believed or count)
        return count

    def _begun(self, tenant: str, replica: str, uses: Mapping[str, QuotaUse]) -> _Shared:
        """Return the quotas of a tenant that one replica names first: the others have their first shares."""
        quotas = {}
        for what, total in self._totals(tenant).items():
            quota = quotas[what] = SharedQuota(total)
            for one, parts in self._replicas.items():
                first = QuotaUse(QuotaShare(0, first_share(total, parts)))
                quota.join(one, uses.get(what, first) if one == replica else first)
        return _Shared(quotas)


@dataclass
class ServedElsewhere:
    """Seconds of service that each tenant received on other replicas, as each replica is told: totals that only grow."""

    _seen: dict[str, dict[str, float]] = field(default_factory=dict)
    _told: dict[str, dict[str, float]] = field(default_factory=dict)

    def join(self, replica: str) -> None:
        """Add a replica. What was received before counts no more."""
        self._told.setdefault(replica, {})

    def leave(self, replica: str) -> None:
        """Remove a replica that has ended."""
        self._told.pop(replica, None)
        self._seen.pop(replica, None)

    def heard(self, report: ReplicaReport) -> None:
        """Take in what tenants have received on a replica since it started. The first time it only tells where it stands."""
        before = self._seen.get(report.name, report.served)
        for tenant, total in report.served.items():
            seconds = total - before.get(tenant, 0.0)
            for replica, told in self._told.items():
                if replica != report.name and seconds > 0:
                    told[tenant] = told.get(tenant, 0.0) + seconds
        self._seen[report.name] = report.served

    def of(self, replica: str) -> dict[str, float]:
        """Return what a replica is told."""
        return self._told.get(replica, {})
