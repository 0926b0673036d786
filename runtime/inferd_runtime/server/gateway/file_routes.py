"""Files of runs over HTTP, in pieces: JSON with Base64, so that nobody on the way holds more than one of them."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from inferd.protocol import InvalidRequest, NotFound, shown
from inferd.protocol.files import BeginFile, FileBegun, WriteFile
from inferd_runtime.server.gateway.auth import TENANT_KEY
from inferd_runtime.server.gateway.replies import reply
from inferd_runtime.server.gateway.requests import FileBody, FilePieceBody, number_of, read_body
from inferd_runtime.server.services.run_files import LAUNCHER
from inferd_runtime.server.supervisor.runs import Run
from inferd_runtime.server.supervisor.runtime import Runtime

MOST_NUMBER = 1 << 31
MAX_DIGITS = 9


@dataclass(frozen=True)
class FileApi:
    """The routes below ``/v1/runs/{run}/files``."""

    runtime: Runtime

    def routes(self) -> list[BaseRoute]:
        """Return the routing table."""
        return [
            Route("/v1/runs/{run}/files", self.files, methods=["GET"]),
            Route("/v1/runs/{run}/files", self.begin, methods=["POST"]),
            Route("/v1/runs/{run}/files/{number}", self.read, methods=["GET"]),
            Route("/v1/runs/{run}/files/{number}", self.write, methods=["POST"]),
        ]

    async def files(self, request: Request) -> Response:
        """Answer the files that the program has sent and that are still there."""
        run = await self._find(request)
        found = self.runtime.files.of(run, request.scope[TENANT_KEY])
        return reply({"files": [] if found is None else [file.head() for file in found.sent]})

    async def begin(self, request: Request) -> Response:
        """Announce a file for the program: 201 with its number."""
        run = await self._active(request)
        body = await read_body(request, FileBody, self.runtime.settings.max_body_bytes, self.runtime.use.bodies)
        file = await self.runtime.files.begin(run, BeginFile(body.name, body.media_type, body.size), LAUNCHER)
        return reply(FileBegun(file.number), 201)

    async def write(self, request: Request) -> Response:
        """Take a file's next bytes: 202; the program gets it once all are there."""
        run = await self._active(request)
        body = await read_body(request, FilePieceBody, self.runtime.settings.max_body_bytes, self.runtime.use.bodies)
        piece = WriteFile(_number(request), body.offset, body.data)
        return reply({"whole": await self.runtime.files.write(run, LAUNCHER, piece)}, 202)

    async def read(self, request: Request) -> Response:
        """Answer bytes of a file that the program has sent, from an offset on."""
        run = await self._find(request)
        found = self.runtime.files.of(run, request.scope[TENANT_KEY])
        if found is None:
            raise NotFound("the run has sent no files, or they are gone")
        offset = int(number_of(request, "offset", 0, MOST_NUMBER))
        return reply(await self.runtime.files.read(found, LAUNCHER, _number(request), offset))

    async def _find(self, request: Request) -> str:
        return (await self.runtime.keeper.find(request.path_params["run"], request.scope[TENANT_KEY])).id

    async def _active(self, request: Request) -> Run:
        run = await self.runtime.keeper.find(request.path_params["run"], request.scope[TENANT_KEY])
        if not isinstance(run, Run):
            raise InvalidRequest(f"run {run.id} takes no more files: it is over", run=run.id)
        return run


def _number(request: Request) -> int:
    """Return a file's number. Raises NotFound for what is none."""
    text: str = request.path_params["number"]
    if not (text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS):
        raise NotFound(f"there is no file {shown(text)}")
    return int(text)
