"""Opens a runtime as a replica, and ends it so that nothing is lost."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import anyio

from inferd_runtime.cluster.hop import HopTokens
from inferd_runtime.cluster.messages import NAME_DIGITS, REPLICAS_FOLDER
from inferd_runtime.cluster.replica.engine_exchange import EngineExchange
from inferd_runtime.cluster.replica.quotas import ReplicaQuotas
from inferd_runtime.cluster.replica.relayed_messages import RelayedMessages
from inferd_runtime.cluster.replica.relayed_offers import RelayedOffers
from inferd_runtime.cluster.replica.remote_programs import RemotePrograms, open_remote_library
from inferd_runtime.cluster.replica.routes import ReplicaApi
from inferd_runtime.cluster.replica.state import ReplicaState
from inferd_runtime.interpreter import collect_rarely
from inferd_runtime.server.gateway.app import Gateway, open_gateway
from inferd_runtime.server.gateway.gateway_role import GatewayRole
from inferd_runtime.server.run_store.records import new_run_id
from inferd_runtime.server.supervisor.commands import Commands
from inferd_runtime.settings.settings import Settings

log = logging.getLogger("inferd.cluster")
FRONT_SECONDS = 10.0
"""How long a replica that is to end waits for the front to have seen it."""


@dataclass(frozen=True, kw_only=True)
class ReplicaOrder:
    """What a replica is told when it starts. ``settings``: the cluster's; ``host``: where the replica listens, at any port."""

    name: str
    key: str
    settings: Settings
    host: str = "127.0.0.1"

    @property
    def own_settings(self) -> Settings:
        """The settings of the replica's gateway, which has a folder of its own."""
        folder = self.settings.data_dir / REPLICAS_FOLDER / self.name
        return replace(
            self.settings, host=self.host, port=0, data_dir=folder, state_dir=folder, tls_cert=None, tls_key=None,
            insecure=True, audit_log=None, idle_minutes=0.0, context_dir=self.settings.shared_context_dir,
        )  # fmt: skip


@dataclass(frozen=True)
class Replica:
    """A replica that listens."""

    gateway: Gateway
    state: ReplicaState

    async def end(self, seconds: float) -> None:
        """Start nothing more, and wait until what goes on is over, at most ``seconds``. Runs that survive need not be waited for,
        but are: what goes on elsewhere is computed again.
        """
        self.state.draining = True
        with anyio.move_on_after(FRONT_SECONDS) as without_front:
            await self.state.drained()
        with anyio.move_on_after(seconds):
            await self.gateway.runtime.drain(seconds)
            if not without_front.cancelled_caught:
                await self.state.idle()


def new_replica_name() -> str:
    """Return a name for a replica: its runs' ids begin with it."""
    return secrets.token_hex(NAME_DIGITS // 2)


@asynccontextmanager
async def open_replica(order: ReplicaOrder, commands: Commands | None = None) -> AsyncIterator[Replica]:
    """Open the runtime; launches work once ``gateway.runtime.wait_ready()`` returns."""
    settings = order.own_settings
    settings.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    state = ReplicaState(order.name, settings.data_dir)
    quotas = ReplicaQuotas(pages=settings.tenant_pages or 0)
    programs, messages = RemotePrograms(order.key, lambda: state.front), RelayedMessages()
    role = GatewayRole(
        programs=lambda of: open_remote_library(of, programs),
        messages=lambda of: nullcontext(lambda table: table.join(messages)),
        tokens=HopTokens(order.key),
        quotas=quotas.over,
        offers=RelayedOffers(messages),
        run_id=partial(new_run_id, order.name),
        settles_all=True,
        admit_child=messages.admit_launch,
        routes=lambda runtime, responses: ReplicaApi(
            runtime, responses, state, quotas, EngineExchange(runtime.engine, quotas), messages, order.key
        ).routes(),
    )
    async with open_gateway(settings, commands, role) as gateway:
        yield Replica(gateway, state)


async def serve_replica(
    order: ReplicaOrder, ready: Callable[[Replica], None], stopping: anyio.Event, commands: Commands | None = None
) -> None:
    """Serve until ``stopping`` is set, then end. ``ready`` hears once launches work."""
    async with open_replica(order, commands) as replica:
        await replica.gateway.runtime.wait_ready()
        collect_rarely()
        ready(replica)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_stop_when_forgotten, replica.state, stopping)
            await stopping.wait()
            tasks.cancel_scope.cancel()
        await replica.end(order.settings.drain_seconds)


async def _stop_when_forgotten(state: ReplicaState, stopping: anyio.Event) -> None:
    await state.forgotten(os.getppid())
    log.warning("nobody looks after this replica any more, and no front asks for it: it ends")
    stopping.set()


def left_folders(data_dir: Path) -> list[Path]:
    """Return the folders of all replicas that are, or were, there."""
    folder = data_dir / REPLICAS_FOLDER
    return [path for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []
