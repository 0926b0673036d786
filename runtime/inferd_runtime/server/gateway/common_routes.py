"""The routes that a gateway and the front of a cluster answer alike: that they live, which version they are, and programs."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from inferd.protocol import PROTOCOL_VERSION
from inferd_runtime import __version__
from inferd_runtime.server.gateway.auth import TENANT_KEY
from inferd_runtime.server.gateway.replies import program_json, reply
from inferd_runtime.server.gateway.requests import unless_left
from inferd_runtime.server.programs.library import ProgramLibrary
from inferd_runtime.server.tenancy.tenant_use import TenantUse
from inferd_runtime.settings.settings import Settings


@dataclass(frozen=True)
class CommonRoutes:
    """The routes."""

    settings: Settings
    programs: ProgramLibrary
    use: TenantUse

    def routes(self) -> list[BaseRoute]:
        """Return the routing table."""
        return [
            Route("/livez", self.livez),
            Route("/version", self.version),
            Route("/v1/programs", self.list_programs, methods=["GET"]),
            Route("/v1/programs", self.upload, methods=["POST"]),
            Route("/v1/programs/{reference}", self.get_program, methods=["GET"]),
            Route("/v1/programs/{reference}", self.remove_program, methods=["DELETE"]),
        ]

    async def livez(self, request: Request) -> Response:
        """Answer that the process is alive."""
        return reply({"live": True})

    async def version(self, request: Request) -> Response:
        """Answer the versions of inferd and of its protocol."""
        return reply({"version": __version__, "protocol": PROTOCOL_VERSION})

    async def upload(self, request: Request) -> Response:
        """Keep a program: 201, or 200 when it was there already. A client that leaves ends what it would wait for."""
        most, tenant = self.settings.max_body_bytes, request.scope[TENANT_KEY]
        done = await unless_left(request, most, self.use.bodies, lambda read: self.programs.upload(read, tenant))
        return reply({**program_json(done.program), "created": done.created}, 201 if done.created else 200)

    async def list_programs(self, request: Request) -> Response:
        """Answer the tenant's programs, newest first."""
        return reply({"programs": await self.programs.entries(request.scope[TENANT_KEY])})

    async def get_program(self, request: Request) -> Response:
        """Answer one program with its interface."""
        found = await self.programs.find(request.path_params["reference"], request.scope[TENANT_KEY])
        return reply(program_json(found))

    async def remove_program(self, request: Request) -> Response:
        """Remove a version of a program, or all of its versions; runs that have it go on."""
        reference, tenant = request.path_params["reference"], request.scope[TENANT_KEY]
        return reply({"removed": await self.programs.remove(reference, tenant)})
