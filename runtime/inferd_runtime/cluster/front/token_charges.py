"""Tokens that replicas have generated, charged to their tenants at the front: the rate holds over the whole cluster."""

from __future__ import annotations

from inferd_runtime.cluster.messages import ReplicaReport
from inferd_runtime.server.tenancy.tenant_use import TenantUse


class TokenCharges:
    """What was generated before the front first heard of a replica is not charged."""

    def __init__(self, use: TenantUse) -> None:
        self._use = use
        self._seen: dict[str, dict[str, int]] = {}

    def heard(self, report: ReplicaReport) -> None:
        """Charge what a replica has generated since its last report."""
        before = self._seen.get(report.name, report.produced)
        for tenant, total in report.produced.items():
            self._use.charge_tokens(tenant, total - before.get(tenant, 0))
        self._seen[report.name] = report.produced
