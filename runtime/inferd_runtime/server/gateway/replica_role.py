"""What a gateway does otherwise when it is one of a cluster's replicas. What a cluster is, nothing here knows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from starlette.routing import BaseRoute

from inferd_runtime.server.gateway.auth import AccessTokens
from inferd_runtime.server.programs.library import ProgramLibrary
from inferd_runtime.server.response_store.response_store import ResponseStore
from inferd_runtime.server.services.caller import Caller
from inferd_runtime.server.services.mcp_offers import Offers
from inferd_runtime.server.services.table import ServiceTable
from inferd_runtime.server.supervisor.runtime import Runtime
from inferd_runtime.server.tenancy.quotas import QuotasOf


@dataclass(frozen=True)
class ReplicaRole:
    """Parts that stand in for those of a gateway that serves alone.

    Fields:
        tokens: what opens the gateway, instead of the settings' tokens.
        quotas: what tenants may have here, from what the settings say they may have in all.
        programs: opens where programs come from.
        run_id: returns the id of a run that is launched here.
        messages: joins what answers for topics and queues, which are not the replica's own.
        offers: where clients' servers of tools are known.
        admit_child: counts a launch of a program's own. Raises LimitExceeded, Unavailable.
        routes: further routes, of the runtime and its store of responses.
    """

    tokens: AccessTokens
    quotas: Callable[[QuotasOf], QuotasOf]
    programs: Callable[[QuotasOf], AbstractAsyncContextManager[ProgramLibrary]]
    run_id: Callable[[], str]
    messages: Callable[[ServiceTable], None]
    offers: Offers
    admit_child: Callable[[Caller], Awaitable[None]]
    routes: Callable[[Runtime, ResponseStore], Sequence[BaseRoute]]
