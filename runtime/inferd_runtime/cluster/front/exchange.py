"""What the front and its replicas tell each other several times a second, beside where runs are."""

from __future__ import annotations

import time

from inferd_runtime.cluster.active_runs import ActiveRuns
from inferd_runtime.cluster.front.token_charges import TokenCharges
from inferd_runtime.cluster.kept_shares import KeptShares
from inferd_runtime.cluster.messages import FETCH_RATE, FETCHES, KV_PAGES, RUNS, FrontOrder, ReplicaReport
from inferd_runtime.cluster.tenant_shares import ServedElsewhere, TenantShares
from inferd_runtime.server.tenancy.tenant_use import TenantUse


class TenantExchange:
    """Shares of quotas, tokens that were generated, time that was received elsewhere, and the runs that go on.

    ``pages``: KV pages that a tenant may hold whose quotas say nothing (0: no limit). Belongs to the front's event loop.
    """

    def __init__(self, use: TenantUse, pages: int = 0) -> None:
        self._use = use
        self._pages = pages
        self.active = ActiveRuns()
        self._tokens = TokenCharges(use)
        self._shares = TenantShares(self._totals)
        self._elsewhere = ServedElsewhere()
        self._kept = KeptShares()

    def join(self, replica: str) -> None:
        """Add a replica: before it is told anything."""
        self._shares.join(replica)
        self._elsewhere.join(replica)

    def leave(self, replica: str) -> None:
        """Remove a replica that has ended. Its runs count until :meth:`taken_over`."""
        self._shares.leave(replica)
        self._elsewhere.leave(replica)

    def taken_over(self, replica: str) -> None:
        """Note that an heir has what a replica left."""
        self.active.ended(replica)
        self._kept.left(replica)

    def order(self, replica: str, front: str, *, drained: bool = False, in_flight: int = 0) -> FrontOrder:
        """Return what a replica is told. ``front``: the front's private address."""
        return FrontOrder(
            front=front, drained=drained, in_flight=in_flight, parts=self._shares.parts_for(replica),
            shares=self._shares.of(replica), elsewhere=self._elsewhere.of(replica), forget=self._kept.of(replica),
            held=self.active.held_elsewhere(replica),
        )  # fmt: skip

    def heard(self, report: ReplicaReport, asked_at: float) -> None:
        """Take in what a replica said when it was asked at that time (monotonic seconds)."""
        self._tokens.heard(report)
        self._shares.heard(report)
        self._elsewhere.heard(report)
        self._kept.heard(report, time.monotonic())
        self.active.heard(report.name, report.runs, report.waiting_of, asked_at, report.held)

    def divide(self) -> None:
        """Change the shares to what is used and wanted."""
        self._shares.divide()
        self._kept.divide(self._use.quotas)

    def _totals(self, tenant: str) -> dict[str, int]:
        quotas = self._use.quotas(tenant)
        totals = {
            RUNS: quotas.runs, KV_PAGES: quotas.kv_pages or self._pages, FETCHES: quotas.fetches,
            FETCH_RATE: quotas.fetches_per_minute,
        }  # fmt: skip
        return {name: total for name, total in totals.items() if total}
