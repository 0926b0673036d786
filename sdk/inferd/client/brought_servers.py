"""Servers of tools that a client brings along: started here, offered over a WebSocket to the runs that are launched with them."""

from __future__ import annotations

import asyncio
import os
import secrets
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import anyio

from inferd.client.event_cursor import Backoff
from inferd.client.http_link import HttpLink
from inferd.client.mcp_file import McpEntry, read_mcp_file
from inferd.mcp import ToolSource, greet, relay_calls
from inferd.protocol import InferdError, InvalidRequest, Unavailable, cut
from inferd.protocol.mcp import OfferMcp, check_server_name
from inferd.transport.websocket import Connection

START_S = 30.0
MAX_PRINTED = 300
"""Characters of what a server printed on standard error that are told if it does not start."""
LOST = ("ClosedResourceError", "BrokenResourceError", "EndOfStream", "ConnectError")
"""Errors of a session whose server is gone, by their classes' names: httpx's successor is not imported here."""


@dataclass(frozen=True)
class BroughtServers:
    """What ``client.launch(..., mcp=...)`` takes. ``key``: the runs that are launched with it see the servers."""

    key: str
    names: Sequence[str]


@asynccontextmanager
async def brought_servers(
    link: HttpLink, servers: str | Path | Mapping[str, ToolSource], key: str = ""
) -> AsyncIterator[BroughtServers]:
    """Start servers, and offer them while the body runs. See :meth:`inferd.Client.mcp`."""
    key = key or f"launch-{secrets.token_hex(12)}"
    async with AsyncExitStack() as stack:
        if isinstance(servers, Mapping):
            sources = dict(servers)
        else:
            entries = read_mcp_file(Path(servers), os.environ)
            held = {name: HeldServer(name, entry) for name, entry in entries.items()}
            for server in held.values():
                stack.push_async_callback(server.close)
            await asyncio.gather(*(server.started() for server in held.values()))
            sources = dict(held)
        for name in sources:
            check_server_name(name)
        offered = _Offered(link, key, sources)
        stack.push_async_callback(offered.close)
        await offered.wait()
        yield BroughtServers(key, list(sources))


class _Offered:
    """Keeps servers offered, in a task of its own, over as many connections as that takes."""

    def __init__(self, link: HttpLink, key: str, servers: Mapping[str, ToolSource]) -> None:
        self._link = link
        self._key = key
        self._servers = servers
        self._begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._keep(), name="inferd brought servers")

    async def wait(self) -> None:
        """Wait until all are offered. Raises what the runtime answers instead."""
        await self._begun

    async def close(self) -> None:
        """Offer them no more."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _keep(self) -> None:
        backoff = Backoff(self._link.patience_s)
        while True:
            try:
                await self._offer(backoff)
            except* InferdError as group:
                lost = first_of(group)
            if not self._begun.done():
                self._begun.set_exception(lost)
            pause = backoff.pause() if isinstance(lost, Unavailable) else None
            if self._begun.exception() is not None or pause is None:
                return
            await anyio.sleep(pause)

    async def _offer(self, backoff: Backoff) -> None:
        """Offer them over one connection, until that is lost: raises the error that says so."""
        url = "ws" + self._link.url.removeprefix("http")
        async with Connection(url, self._link.token, self._link.ca, self._key) as connection:
            for name in self._servers:
                await connection.call(OfferMcp(name, self._key))
            backoff.succeeded()
            if not self._begun.done():
                self._begun.set_result(None)
            async with asyncio.TaskGroup() as tasks:
                for name, server in self._servers.items():
                    tasks.create_task(relay_calls(connection, name, server))
                if not self._servers:
                    await anyio.sleep_forever()


class HeldServer:
    """A server of tools of this machine's, or at a URL, with the methods that programs' calls come to.

    Its session lives in a task of its own, so that what goes wrong there ends no task of others. One that is lost is started
    again by the next call.
    """

    def __init__(self, name: str, entry: McpEntry) -> None:
        if find_spec("mcp") is None:
            raise InvalidRequest("servers of tools need a package that is not installed: pip install 'inferd[mcp]'")
        self._name = name
        self._entry = entry
        self._task: asyncio.Task[None] | None = None
        self._session: asyncio.Future[Any] | None = None

    def __getattr__(self, name: str) -> Any:
        # What the session says of its server: mcp.offer's relay asks for these.
        session = self._opened()
        if session is None or name not in ("server_info", "server_capabilities", "instructions"):
            raise AttributeError(name)
        return getattr(session, name)

    def _opened(self) -> Any:
        """Return the session; None while there is none."""
        held = self._session
        return held.result() if held is not None and held.done() and held.exception() is None else None

    async def started(self) -> Any:
        """Return the session, started first if there is none. Raises Unavailable."""
        if self._task is None or self._task.done():
            self._session = asyncio.get_running_loop().create_future()
            self._task = asyncio.create_task(self._hold(self._session), name=f"inferd mcp {self._name}")
        assert self._session is not None
        return await asyncio.shield(self._session)

    async def close(self) -> None:
        """End it."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def list_tools(self, **page: Any) -> Any:
        """Return a page of the tools."""
        return await self._call("list_tools", **page)

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> Any:
        """Call a tool."""
        return await self._call("call_tool", name, arguments)

    async def list_resources(self, **page: Any) -> Any:
        """Return a page of the resources."""
        return await self._call("list_resources", **page)

    async def read_resource(self, uri: str) -> Any:
        """Return what a resource holds."""
        return await self._call("read_resource", uri)

    async def list_prompts(self, **page: Any) -> Any:
        """Return a page of the prompts."""
        return await self._call("list_prompts", **page)

    async def get_prompt(self, name: str, arguments: dict[str, str]) -> Any:
        """Return a prompt's messages."""
        return await self._call("get_prompt", name, arguments)

    async def _call(self, method: str, *arguments: Any, **options: Any) -> Any:
        session = await self.started()
        try:
            return await getattr(session, method)(*arguments, **options)
        except Exception as error:
            if type(error).__name__ in LOST or _is_closed(error):
                if self._opened() is session:
                    await self.close()
                raise Unavailable(f"the server of tools {self._name} ended during the call") from None
            raise

    async def _hold(self, ready: asyncio.Future[Any]) -> None:
        """Keep a session open. An error before it is ready goes to the task that waits for it."""
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as printed:
            try:
                async with AsyncExitStack() as stack:
                    async with asyncio.timeout(START_S):  # no scope of anyio's: those of the session outlive this block
                        session = await _open(stack, self._entry, printed)
                    ready.set_result(session)
                    await anyio.sleep_forever()
            except Exception as error:  # noqa: BLE001 - the boundary of one server: whatever it does wrong is its callers'
                if not ready.done():
                    printed.seek(0)
                    said = printed.read()[-MAX_PRINTED:].strip()
                    why = cut(str(first_of(error)) or f"it did not greet within {START_S:g} s", MAX_PRINTED)
                    ready.set_exception(
                        Unavailable(f"the server of tools {self._name} does not start: {why} {said}".strip())
                    )
                    ready.exception()


async def _open(stack: AsyncExitStack, entry: McpEntry, printed: Any) -> Any:
    """Open a session with the official package, and greet."""
    import httpx2
    from mcp import ClientSession, StdioServerParameters, stdio_client
    from mcp.client.streamable_http import streamable_http_client

    if entry.command:
        asked = StdioServerParameters(command=entry.command, args=entry.args, env=entry.env or None, cwd=entry.cwd)
        streams = await stack.enter_async_context(stdio_client(asked, errlog=printed))
    else:
        waits = httpx2.Timeout(START_S, read=None)
        http = await stack.enter_async_context(httpx2.AsyncClient(headers=entry.headers, timeout=waits))
        streams = await stack.enter_async_context(streamable_http_client(entry.url, http_client=http))
    session = await stack.enter_async_context(ClientSession(streams[0], streams[1]))
    await greet(session)
    return session


def _is_closed(error: Exception) -> bool:
    """Return True for the official package's error of a connection that was closed."""
    from mcp_types import CONNECTION_CLOSED

    return getattr(getattr(error, "error", None), "code", None) == CONNECTION_CLOSED


def first_of(error: BaseException) -> Any:
    """Return the first error of a group of groups; another error itself."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
