"""A client of one server: programs and runs of the token's tenant."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from inferd.calls.arguments import checked_mapping
from inferd.client.http_link import HttpLink
from inferd.client.run_handle import RunHandle
from inferd.program.json_values import to_json_value
from inferd.program.sources import ENTRY, PROJECT, ProgramSources, read_program
from inferd.protocol import InvalidRequest
from inferd.protocol.texts import checked_text
from inferd.transport.answers import UPLOAD_TIMEOUT_S, fields_of
from inferd.transport.room import LaunchLine

if TYPE_CHECKING:
    from inferd.client.brought_servers import BroughtServers
    from inferd.mcp import ToolSource

DEFAULT_SERVER = "http://127.0.0.1:7070"
PATIENCE_S = 60.0
WAIT_S = 300.0
Sources = str | Path | Mapping[str, str | bytes]


@dataclass(frozen=True)
class ServerProgram:
    """A program that the server has. ``created``: this upload brought it."""

    id: str
    name: str
    version: str
    created: bool

    @property
    def reference(self) -> str:
        """What launches it, and nothing else: its hash."""
        return self.id


class Client:
    """An async context manager: ``async with Client(url, token) as client:``. Any task may use it.

    ``url``: ``http://`` or ``https://``; ``ca``: a file with the certificates to trust instead of the system's.
    ``patience_s``: how long a lost connection is made again where that does nothing twice, which is for streams, questions,
    ``cancel``, and launches with a key; and how long requests wait where the tenant has too many connections.
    Raises InvalidRequest for an invalid address or token.
    """

    def __init__(
        self,
        url: str = DEFAULT_SERVER,
        token: str | None = None,
        *,
        ca: str | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._link = HttpLink(url, token, ca, patience_s)
        self._line = LaunchLine()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._link.close()

    async def upload(self, program: Sources, *, name: str = "", version: str = "") -> ServerProgram:
        """Upload a ``.py`` file, a folder with a ``main.py``, or texts and bytes by path; nothing changes if it is there.

        ``name`` and ``version`` win over the program's own. Raises InvalidRequest, ProgramSyntaxError and LimitExceeded for
        what is no program that the server takes.
        """
        if not isinstance(program, (str, PathLike, Mapping)):
            raise InvalidRequest(
                f"program must be a path, or source texts by relative path, not {type(program).__name__}"
            )
        sources = _given(program) if isinstance(program, Mapping) else read_program(Path(program))
        body = {
            "files": sources.files, "entry": sources.entry, "name": name or sources.named(), "version": version,
            "data": {path: base64.b64encode(data).decode() for path, data in sources.data.items()},
        }  # fmt: skip
        answer = await self._link.request("POST", "/v1/programs", body, again=True, wait_s=UPLOAD_TIMEOUT_S)
        fields_of(answer, id=str, name=str, version=str, created=bool)
        return ServerProgram(answer["id"], answer["name"], answer["version"], answer["created"])

    async def launch(
        self,
        program: str | ServerProgram,
        arguments: Mapping[str, Any] | None = None,
        *,
        limits: Mapping[str, float] | None = None,
        seed: int | None = None,
        idempotency_key: str | None = None,
        retry_safe: bool | None = None,
        mcp: BroughtServers | None = None,
        wait_s: float = WAIT_S,
    ) -> RunHandle:
        """Start a run of a program: NAME, NAME@VERSION, sha256:HASH, or what :meth:`upload` returned.

        Args:
            arguments: of the program's ``main``, by name; dataclasses become plain values.
            limits: only those to change, such as ``wall_s`` and ``memory_mb``.
            seed: of the run's random numbers; None draws one.
            idempotency_key: a launch with the same key starts no second run. With one, a launch whose connection is lost is
                asked for again; without, ConnectionLost says that it may have started or not.
            retry_safe: whether the run may be started again after a crash; None: as the program says.
            mcp: servers of tools that the run, and those that it launches, may use, from :meth:`mcp`.
            wait_s: where the server has no room for it now, because of a quota or others, it waits in turn, until for so many
                seconds no launch of this client has found room. Then, and at once with 0, LimitExceeded.
        """
        reference = program.reference if isinstance(program, ServerProgram) else program
        given = to_json_value(checked_mapping("arguments", arguments), "arguments")
        body: dict[str, Any] = {"program": reference, "arguments": given}
        optional = {
            "limits": None if limits is None else checked_mapping("limits", limits),
            "seed": seed,
            "retry_safe": retry_safe,
        }
        body |= {key: value for key, value in optional.items() if value is not None}
        headers = {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}
        if mcp is not None:
            # The header has a cluster start it where the servers are offered.
            body["mcp"] = headers["X-Session-Id"] = mcp.key
        again = idempotency_key is not None
        started = await self._line.launch(
            lambda: self._link.request("POST", "/v1/runs", body, headers, again=again), wait_s
        )
        return RunHandle(self._link, started)

    def mcp(
        self, servers: str | Path | Mapping[str, ToolSource], *, key: str = ""
    ) -> AbstractAsyncContextManager[BroughtServers]:
        """Bring servers of tools along while the body runs, for the runs that are launched with them, and no others:

            async with client.mcp("mcp.json") as tools:
                run = await client.launch("agent", mcp=tools)
                await run.result()

        ``servers``: a file as other hosts of MCP have it (commands, and URLs of streamable HTTP), or open sessions of the
        official package, by the names that programs connect to. They are started here, on this machine, which needs
        ``pip install 'inferd[mcp]'``. A lost connection is made again, for the client's patience. ``key``: under which they are
        offered; a client that gives the same one as before brings them again for the runs that it launched then.

        Entering raises InvalidRequest for what is no such file and for a name that the operator uses, Unavailable for a server
        that does not start.
        """
        from inferd.client.brought_servers import brought_servers

        return brought_servers(self._link, servers, key)

    async def attach(self, run: str) -> RunHandle:
        """Return a run by its id. Raises NotFound."""
        return RunHandle(self._link, await self._link.request("GET", f"/v1/runs/{quote(run, safe='')}", again=True))

    async def runs(self) -> list[dict[str, Any]]:
        """Return the runs that are kept, newest first, without their results."""
        answer = await self._link.request("GET", "/v1/runs", again=True)
        runs: list[dict[str, Any]] = fields_of(answer, runs=list)["runs"]
        return runs

    async def programs(self) -> list[dict[str, Any]]:
        """Return the programs that are kept, newest first."""
        answer = await self._link.request("GET", "/v1/programs", again=True)
        programs: list[dict[str, Any]] = fields_of(answer, programs=list)["programs"]
        return programs

    async def program(self, reference: str) -> dict[str, Any]:
        """Return a program with its interface. Raises NotFound."""
        path = f"/v1/programs/{quote(reference, safe='')}"
        program: dict[str, Any] = await self._link.request("GET", path, again=True)
        return program

    async def remove(self, reference: str) -> int:
        """Remove NAME@VERSION, or all versions of NAME; returns how many those were. Runs of it go on. Raises NotFound."""
        path = f"/v1/programs/{quote(reference, safe='')}"
        removed: int = fields_of(await self._link.request("DELETE", path, again=False), removed=int)["removed"]
        return removed


def _given(files: Mapping[str, str | bytes]) -> ProgramSources:
    sources, data = {}, {}
    for path, content in files.items():
        if path.endswith(".py") or path == PROJECT:
            sources[path] = checked_text(f"the source of {path}", content)
        else:
            data[path] = content if isinstance(content, bytes) else checked_text(f"the file {path}", content).encode()
    entry = ENTRY if ENTRY in sources or len(sources) != 1 else next(iter(sources))
    return ProgramSources(entry.removesuffix(".py"), sources, entry, data)
