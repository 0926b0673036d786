"""A tenant's quotas at one replica: what the front counts for the whole cluster has no limit here."""

from __future__ import annotations

from dataclasses import replace

from inferd_runtime.server.tenancy.quotas import QuotasOf


def quotas_at_replica(whole: QuotasOf) -> QuotasOf:
    """Return a tenant's quotas at a replica, from what it may have in the whole cluster."""
    return lambda tenant: replace(whole(tenant), sockets=0, connections=0, programs=0, tokens_per_minute=0)
