"""What replicas ask the front, and what tells it that a replica is there: at an address that only the cluster's key opens."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from inferd_runtime.carriable import read_json
from inferd_runtime.cluster.front.watching import Watcher
from inferd_runtime.cluster.hop import require_cluster
from inferd_runtime.cluster.messages import (
    ENTRIES_PATH,
    JOIN_PATH,
    RESOLVE_PATH,
    SOURCE_PATH,
    JoinCluster,
    ProgramKey,
    ProgramQuery,
)
from inferd_runtime.cluster.proof import proof_route
from inferd_runtime.server.gateway.replies import JSON_TYPE, reply
from inferd_runtime.server.programs.library import ProgramLibrary


@dataclass(frozen=True)
class PrivateRoutes:
    """The routes."""

    programs: ProgramLibrary
    watcher: Watcher

    def routes(self) -> list[BaseRoute]:
        """Return the routing table."""
        return [
            proof_route(self.watcher.key, self.watcher.front),
            Route(RESOLVE_PATH, self.resolve, methods=["POST"]),
            Route(SOURCE_PATH, self.source, methods=["POST"]),
            Route(ENTRIES_PATH, self.entries, methods=["POST"]),
            Route(JOIN_PATH, self.join, methods=["POST"]),
        ]

    async def resolve(self, request: Request) -> Response:
        """Answer the hash, name and version that a tenant's reference stands for."""
        require_cluster(request.scope)
        asked = read_json(await request.body(), "the question", ProgramQuery)
        return reply(ProgramKey(*await self.programs.resolve(asked.reference, asked.tenant)))

    async def source(self, request: Request) -> Response:
        """Answer the source of a program."""
        require_cluster(request.scope)
        asked = read_json(await request.body(), "the question", ProgramKey)
        stored = await self.programs.stored((asked.hash, asked.name, asked.version))
        return Response(stored.bundle, media_type=JSON_TYPE)

    async def entries(self, request: Request) -> Response:
        """Answer a tenant's programs, newest first."""
        require_cluster(request.scope)
        asked = read_json(await request.body(), "the question", ProgramQuery)
        return reply(await self.programs.entries(asked.tenant))

    async def join(self, request: Request) -> Response:
        """Take a replica in, and answer its last report; one that is known is not asked again."""
        require_cluster(request.scope)
        joining = msgspec.json.decode(await request.body(), type=JoinCluster)
        await self.watcher.join(joining)
        return reply(self.watcher.members.live[joining.name].report)
