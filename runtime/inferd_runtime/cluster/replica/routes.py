"""The routes of a replica that the front alone may use."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import anyio.to_thread
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute

from inferd.protocol import InferdError, InvalidRequest
from inferd_runtime.carriable import read_json
from inferd_runtime.cluster.hop import require_cluster
from inferd_runtime.cluster.messages import (
    KEPT_RESPONSES,
    KEPT_RUNS,
    KV_PAGES,
    REPLICA_NAME,
    REPORT_PATH,
    RUNS,
    TAKE_OVER_PATH,
    FrontOrder,
    ReplicaReport,
    TakeOver,
)
from inferd_runtime.cluster.proof import proof_route
from inferd_runtime.cluster.relayed import MESSAGES_PATH
from inferd_runtime.cluster.replica.engine_exchange import EngineExchange
from inferd_runtime.cluster.replica.quotas import ReplicaQuotas
from inferd_runtime.cluster.replica.relayed_messages import RelayedMessages
from inferd_runtime.cluster.replica.state import ReplicaState
from inferd_runtime.server.chat.aliases import read_aliases
from inferd_runtime.server.gateway.replies import reply
from inferd_runtime.server.processes.folder_lock import locked_folders
from inferd_runtime.server.response_store.response_store import RESPONSES_FILE, ResponseStore
from inferd_runtime.server.run_store.archive import RUNS_FILE
from inferd_runtime.server.supervisor.runtime import Runtime
from inferd_runtime.server.tenancy.kept_counts import Kept
from inferd_runtime.session.wire import EngineStats, GetEngineStats

STATS_SECONDS = 1.0
"""How often the engine is asked for its figures, and how long it may take."""


@dataclass
class ReplicaApi:
    """The routes of one replica."""

    runtime: Runtime
    responses: ResponseStore
    state: ReplicaState
    quotas: ReplicaQuotas
    exchange: EngineExchange
    messages: RelayedMessages
    key: str
    _stats: EngineStats = field(default_factory=lambda: EngineStats(0, 0, 0, 0, 0))
    _asked_at: float = -STATS_SECONDS
    _taking_over: anyio.Lock = field(default_factory=anyio.Lock)
    _was_kept: dict[str, dict[str, Kept]] = field(default_factory=dict)

    def routes(self) -> list[BaseRoute]:
        """Return the routing table."""
        return [
            proof_route(self.key, self.state.name),
            Route(REPORT_PATH, self.report, methods=["POST"]),
            Route(TAKE_OVER_PATH, self.take_over, methods=["POST"]),
            WebSocketRoute(MESSAGES_PATH, self.messages.serve),
        ]

    async def report(self, request: Request) -> Response:
        """Hear what the front says, and answer how things are here."""
        require_cluster(request.scope)
        order = read_json(await request.body(), "the order", FrontOrder)
        self.state.ordered(order)
        self.quotas.ordered(order)
        self._forget(order)
        self.runtime.runs.held_elsewhere = order.held
        await self.exchange.exchange()
        stats, runtime, pool = await self._engine_stats(), self.runtime, self.runtime.fleet.pool
        running, waiting = pool.running_by_tenant, pool.waiting_by_tenant
        sent = runtime.outside.http.used() if runtime.outside is not None else {}
        used = {RUNS: running, KV_PAGES: self.exchange.pages, **sent}
        if waiting:
            runtime.fleet.apply()  # a share may have grown
        return reply(
            ReplicaReport(
                name=self.state.name,
                ready=runtime.engine.answers and runtime.fleet.pool.any_ready,
                draining=self.state.draining,
                runs={run.id: run.tenant for run in runtime.runs.active},
                waiting=len(pool.waiting),
                jobs=stats.jobs,
                pages=stats.pages,
                pages_free=stats.pages_free,
                heir_of=self.state.heir_of,
                produced=dict(runtime.use.produced),
                served=dict(self.exchange.served),
                uses=self.quotas.uses(used, {RUNS: running + waiting}),
                waiting_of=self.quotas.short_of_workers(running, waiting),
                models=self._models(),
                parts=self.quotas.parts,
                kept=self._kept(),
                held=runtime.runs.held,
                now=time.monotonic(),
            )
        )

    async def take_over(self, request: Request) -> Response:
        """Take over what a replica left that has ended: its runs, of which those that survive go on here, and its responses.

        Raises Unavailable while that one is alive.
        """
        require_cluster(request.scope)
        name = read_json(await request.body(), "the order", TakeOver).name
        folder = self.state.folder.parent / name
        if not REPLICA_NAME.fullmatch(name) or name == self.state.name:
            raise InvalidRequest(f"{name!r} is no other replica")
        async with self._taking_over:
            if not (folder / RUNS_FILE).exists():
                return reply({"resumed": 0})
            with locked_folders(folder):
                runs = await self._taken_from(folder)
                names = self.state.inherit(name)
                # Runs go on once the folder is gone: if this replica ends meanwhile, its own heir finds each of them once.
                await anyio.to_thread.run_sync(shutil.rmtree, folder)
            try:
                await self.runtime.keeper.resume(runs, self.runtime.resume)
            finally:
                self.state.heir_of += names  # not before: requests for a run that goes on find it
        return reply({"resumed": len(runs)})

    async def _taken_from(self, folder: Path) -> list[str]:
        """Have all that is in a folder here. Return the runs that are to go on."""
        await self.runtime.files.take_over(folder)
        runs = await self.runtime.keeper.take_over(folder / RUNS_FILE)
        if (folder / RESPONSES_FILE).exists():
            await self.responses.take_over(folder / RESPONSES_FILE)
        return runs

    def _forget(self, order: FrontOrder) -> None:
        """Forget what is too much over all replicas."""
        for store, forget in (
            (KEPT_RUNS, self.runtime.keeper.forget_oldest),
            (KEPT_RESPONSES, self.responses.forget_oldest),
        ):
            for tenant, target in order.forget.get(store, {}).items():
                forget(tenant, target)

    def _kept(self) -> dict[str, dict[str, Kept]]:
        """Return what is kept here; what it was before, while another replica's is being added, which the front counts there."""
        if not self._taking_over.locked():
            self._was_kept = {
                KEPT_RUNS: dict(self.runtime.keeper.kept.of), KEPT_RESPONSES: dict(self.responses.kept.of)
            }  # fmt: skip
        return self._was_kept

    def _models(self) -> list[str]:
        """Return the names of what is served here, aliases included: none of them is a program's."""
        if self.runtime.engine.pid is None:
            return []
        aliases = read_aliases(self.runtime.settings.alias, self.runtime.settings.engine)
        return [*(model.name for model in self.runtime.models.models), *aliases]

    async def _engine_stats(self) -> EngineStats:
        """Return the engine's figures, of at most a second ago where it answers in time."""
        now = time.monotonic()
        if now - self._asked_at >= STATS_SECONDS and self.runtime.engine.pid is not None:
            self._asked_at = now
            with anyio.move_on_after(STATS_SECONDS):
                try:
                    self._stats = await self.runtime.engine.call(GetEngineStats(), EngineStats)
                except InferdError:
                    self._asked_at = now  # it has just ended: the next answer tells
        return self._stats
