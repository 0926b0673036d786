"""A tenant's quotas at one replica: the front's share of each that is divided, and no limit on what the front itself counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from inferd_runtime.cluster.messages import QuotaPart, QuotaUse
from inferd_runtime.server.supervisor.runtime import Runtime
from inferd_runtime.server.tenancy.quotas import Quotas, QuotasOf

AT_FRONT = {"sockets": 0, "connections": 0, "programs": 0}
"""What the front enforces for the whole cluster, and a replica does not."""


class ReplicaQuotas:
    """Belongs to the replica's event loop."""

    def __init__(self) -> None:
        self._whole: QuotasOf = lambda tenant: Quotas()
        self._shares: dict[str, dict[str, QuotaPart]] = {}

    def over(self, whole: QuotasOf) -> QuotasOf:
        """Return a tenant's quotas here, from what it may have in the whole cluster."""
        self._whole = whole
        return self.of

    def of(self, tenant: str) -> Quotas:
        """Return a tenant's quotas here."""
        return replace(self._whole(tenant), **AT_FRONT)

    def apply(self, shares: Mapping[str, Mapping[str, QuotaPart]]) -> None:
        """Take in the front's shares."""

    def uses(self, runtime: Runtime) -> dict[str, dict[str, QuotaUse]]:
        """Return what the tenants use of what is divided."""
        return {}
