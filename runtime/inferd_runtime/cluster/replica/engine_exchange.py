"""What a replica's engine and the cluster tell each other of tenants: time received here and elsewhere, pages of KV."""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import dataclass, field

import anyio

from inferd.protocol import InferdError
from inferd_runtime.cluster.replica.quotas import ReplicaQuotas
from inferd_runtime.server.supervisor.engine_supervisor import EngineSupervisor
from inferd_runtime.session.wire import ShareTenants, TenantsHere

ANSWER_SECONDS = 1.0


@dataclass
class EngineExchange:
    """``served``: seconds of the engine's time that tenants received since the replica started; ``pages``: that they hold."""

    engine: EngineSupervisor
    quotas: ReplicaQuotas
    served: Counter[str] = field(default_factory=Counter)
    pages: dict[str, int] = field(default_factory=dict)

    async def exchange(self) -> None:
        """Tell the engine what the front has told, and hear what it did since. An engine that is gone has done nothing."""
        quotas = self.quotas
        told = ShareTenants(quotas.take_elsewhere(), quotas.page_shares(), quotas.parts)
        with anyio.move_on_after(ANSWER_SECONDS), contextlib.suppress(InferdError):
            here = await self.engine.call(told, TenantsHere)
            self.pages = here.pages
            for tenant, seconds in here.served.items():
                self.served[tenant] += seconds  # type: ignore[assignment]  # a Counter counts seconds as well
