"""What differs between a gateway that serves alone and one of a cluster's replicas. What a cluster is, nothing here knows."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial

from starlette.routing import BaseRoute

from inferd_runtime.server.gateway.auth import AccessTokens
from inferd_runtime.server.packages.finder import package_finder
from inferd_runtime.server.programs.library import ProgramLibrary, open_library
from inferd_runtime.server.response_store.response_store import ResponseStore
from inferd_runtime.server.run_store.records import new_run_id
from inferd_runtime.server.services.caller import Caller
from inferd_runtime.server.services.launches.launches import admitted
from inferd_runtime.server.services.mcp_offers import Offers
from inferd_runtime.server.services.table import ServiceTable
from inferd_runtime.server.services.topics.families import join_messages
from inferd_runtime.server.services.topics.kept_values import QUEUES_FILE, open_kept_values
from inferd_runtime.server.supervisor.runtime import Runtime
from inferd_runtime.server.tenancy.quotas import QuotasOf
from inferd_runtime.settings.settings import Settings

REGISTRY_FILE = "programs.sqlite3"
JoinMessages = Callable[[ServiceTable], None]


def as_settings_say(quotas: QuotasOf) -> QuotasOf:
    """Return the quotas."""
    return quotas


def _no_routes(runtime: Runtime, responses: ResponseStore) -> Sequence[BaseRoute]:
    return ()


@dataclass(frozen=True)
class GatewayRole:
    """Parts of a gateway that depend on whether it serves alone, which is what the defaults are for.

    Fields:
        programs: opens where programs come from.
        messages: opens what joins the answers for topics and queues.
        tokens: what opens the gateway, instead of the settings' tokens.
        quotas: what tenants may have here, from what the settings say they may have in all.
        offers: where clients' servers of tools are known.
        run_id: returns the id of a run that is launched here.
        settles_all: every run is kept as settled, whether or not it survives.
        admit_child: counts a launch of a program's own. Raises LimitExceeded, Unavailable.
        routes: further routes, of the runtime and its store of responses.
    """

    programs: Callable[[QuotasOf], AbstractAsyncContextManager[ProgramLibrary]]
    messages: Callable[[QuotasOf], AbstractAsyncContextManager[JoinMessages]]
    tokens: AccessTokens | None = None
    quotas: Callable[[QuotasOf], QuotasOf] = as_settings_say
    offers: Offers | None = None
    run_id: Callable[[], str] = new_run_id
    settles_all: bool = False
    admit_child: Callable[[Caller], Awaitable[None]] = admitted
    routes: Callable[[Runtime, ResponseStore], Sequence[BaseRoute]] = _no_routes


def open_own_library(settings: Settings, quotas: QuotasOf) -> AbstractAsyncContextManager[ProgramLibrary]:
    """Open the library of programs in the data folder."""
    return open_library(settings.data_dir / REGISTRY_FILE, quotas, packages=package_finder(settings))


@asynccontextmanager
async def _own_messages(settings: Settings, quotas: QuotasOf) -> AsyncIterator[JoinMessages]:
    async with open_kept_values(settings.data_dir / QUEUES_FILE, quotas) as queues:
        yield partial(join_messages, kept=queues)


def alone(settings: Settings) -> GatewayRole:
    """Return the role of a gateway that serves alone, with everything in folders of its own."""
    return GatewayRole(partial(open_own_library, settings), partial(_own_messages, settings))
