"""The process that speaks to one server of tools for one tenant, and starts it where it is a command.

It has the tenant's calls of this server and nothing else: a server that lies, floods or hangs costs this process.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx2
import mcp_types
import msgspec
import zmq
from mcp.client.session import ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from inferd.mcp import greet
from inferd.protocol import InferdError, InvalidRequest, LimitExceeded, Unavailable, cut
from inferd.protocol.mcp import (
    CallMcpTool,
    ConnectMcp,
    GetMcpPrompt,
    ListMcpPrompts,
    ListMcpResources,
    ListMcpTools,
    McpConnected,
    McpItems,
    McpToolResult,
    McpTools,
    ReadMcpResource,
)
from inferd_runtime.isolation.child import Child
from inferd_runtime.server.egress.check_time import BoundedSteps, CheckTooLong
from inferd_runtime.server.egress.link_child import EgressHandlers, EgressServer
from inferd_runtime.server.egress.mcp_limits import MAX_PAGES, checked_objects, cut_text, kept_tools
from inferd_runtime.server.egress.mcp_streams import MAX_MESSAGE_BYTES, ContainerMeter, IncomingMeter, stdio_server
from inferd_runtime.server.egress.tool_start import ToolServerStart
from inferd_runtime.server.processes.child_protocol import exit_code

START_SECONDS = 15.0
LIST_SECONDS = 30.0
CHECK_SECONDS = 0.5
"""Processor time of one check of a result against its tool's schema, in which no other call of the server goes on."""
NICENESS = 5
LINES_OF_AN_EVENT = 4
"""What an event and its type come to, with the blank line. One of fewer lines counts as less of a message."""
LOST = (httpx2.HTTPError, OverflowError)
"""What ends a session from within its client; the second for a time that a server asks it to wait for."""
REFUSED_BY_SERVER = (
    mcp_types.INVALID_PARAMS, mcp_types.METHOD_NOT_FOUND, mcp_types.INVALID_REQUEST,
    mcp_types.MISSING_REQUIRED_CLIENT_CAPABILITY, mcp_types.URL_ELICITATION_REQUIRED,
)  # fmt: skip
"""What the same call would be answered again; the last two by a server that asks back, which is refused."""


class ToolServer:
    """Answers the gateway's calls from an open session with a server."""

    def __init__(self, name: str, session: CheckedSession) -> None:
        self._name = name
        self._session = session

    def handlers(self) -> EgressHandlers:
        """Return what is answered."""
        return {
            "mcp.connect": (ConnectMcp, self.connect),
            "mcp.list_tools": (ListMcpTools, self.list_tools),
            "mcp.call_tool": (CallMcpTool, self.call_tool),
            "mcp.list_resources": (ListMcpResources, self.list_resources),
            "mcp.read_resource": (ReadMcpResource, self.read_resource),
            "mcp.list_prompts": (ListMcpPrompts, self.list_prompts),
            "mcp.get_prompt": (GetMcpPrompt, self.get_prompt),
        }

    async def connect(self, asked: ConnectMcp) -> McpConnected:
        """Return what the server says about itself."""
        info, can = self._session.server_info, self._session.server_capabilities
        offers = [name for name in ("tools", "resources", "prompts") if getattr(can, name, None) is not None]
        name, version = (cut_text(info.name), cut_text(info.version)) if info is not None else ("", "")
        return McpConnected(self._name, name, version, cut_text(self._session.instructions), offers)

    async def list_tools(self, asked: ListMcpTools) -> McpTools:
        """Return the server's tools, those that can be used."""
        found = await self._pages(self._session.list_tools, "tools")
        async with self._session.checks:
            return kept_tools(found)

    async def call_tool(self, asked: CallMcpTool) -> McpToolResult:
        """Call a tool."""
        async with self._answering(asked.timeout_s):
            result = await self._session.call_tool(asked.tool, asked.arguments, asked.timeout_s)
        content = checked_objects([plain(part) for part in result.content], "a result")
        structured = result.structured_content
        checked_objects([{"structured": structured}], "a result")
        return McpToolResult(content, structured, bool(result.is_error))

    async def list_resources(self, asked: ListMcpResources) -> McpItems:
        """Return the server's resources."""
        return McpItems(checked_objects(await self._pages(self._session.list_resources, "resources"), "resources"))

    async def read_resource(self, asked: ReadMcpResource) -> McpItems:
        """Return what a resource holds."""
        async with self._answering(LIST_SECONDS):
            found = await self._session.read_resource(asked.uri)
        return McpItems(checked_objects([plain(part) for part in found.contents], "a resource"))

    async def list_prompts(self, asked: ListMcpPrompts) -> McpItems:
        """Return the server's prompts."""
        return McpItems(checked_objects(await self._pages(self._session.list_prompts, "prompts"), "prompts"))

    async def get_prompt(self, asked: GetMcpPrompt) -> McpItems:
        """Return a prompt's messages."""
        async with self._answering(LIST_SECONDS):
            found = await self._session.get_prompt(asked.prompt, asked.arguments)
        messages = checked_objects([plain(part) for part in found.messages], "a prompt")
        return McpItems(messages, cut_text(found.description))

    async def _pages(self, list_page: Callable[..., Awaitable[Any]], what: str) -> list[Any]:
        """Return what a server lists, over all of its pages. Raises LimitExceeded for too many, or too large ones."""
        found: list[Any] = []
        cursor, size = None, 0
        async with self._answering(LIST_SECONDS):
            for _ in range(MAX_PAGES):
                page = await list_page(params=mcp_types.PaginatedRequestParams(cursor=cursor) if cursor else None)
                found += (here := [plain(one) for one in getattr(page, what)])
                size += len(msgspec.json.encode(here))
                if size > MAX_MESSAGE_BYTES:
                    raise LimitExceeded(
                        f"the server lists {what} of more than {MAX_MESSAGE_BYTES} bytes", limit="mcp_list_bytes",
                        value=MAX_MESSAGE_BYTES,
                    )  # fmt: skip
                cursor = page.next_cursor
                if not cursor:
                    return found
        raise LimitExceeded(
            f"the server lists {what} on more than {MAX_PAGES} pages", limit="mcp_pages", value=MAX_PAGES
        )

    @asynccontextmanager
    async def _answering(self, seconds: float) -> AsyncIterator[None]:
        """Bound the time of a call, and turn what a server can do wrong into typed errors."""
        try:
            with anyio.fail_after(seconds):
                yield
        except TimeoutError:
            text = f"{self._name} did not answer within {seconds:g} s"
            raise LimitExceeded(text, limit="mcp_call_s", value=seconds, raise_with="timeout=") from None
        except MCPError as error:
            raise self._refused(error) from None
        except CheckTooLong as error:
            text = f"whether {self._name}'s result is one of its schema takes {error} to find out"
            raise LimitExceeded(text, limit="mcp_check_s", value=CHECK_SECONDS) from None
        except InferdError:
            raise
        except Exception as error:  # noqa: BLE001 - the boundary of the client, which holds results against a server's schemas
            text = cut(f"{type(error).__name__}: {error}", 300)
            raise Unavailable(f"{self._name} answered what is no result of its kind: {text}") from None

    def _refused(self, error: MCPError) -> InferdError:
        code, message = error.error.code, cut_text(error.error.message)
        if code == mcp_types.REQUEST_TIMEOUT:
            return LimitExceeded(f"{self._name} did not answer in time", limit="mcp_call_s", raise_with="timeout=")
        kind = InvalidRequest if code in REFUSED_BY_SERVER else Unavailable
        return kind(f"{self._name} answered an error: {message}", server=self._name, mcp_code=code)


def plain(value: Any) -> Any:
    """Return a part of an answer as the protocol writes it in JSON."""
    return value.model_dump(mode="json", by_alias=True, exclude_none=True)


@asynccontextmanager
async def tool_server(start: ToolServerStart) -> AsyncIterator[ToolServer]:
    """Start a server, or connect to it, and yield it once it has greeted; it ends with the block.

    Raises Unavailable if it does not greet, and, out of the block, once it has ended; LimitExceeded once it sends too much.
    """
    streams = _command_streams(start) if start.command else _url_streams(start)
    try:
        async with streams as (read, write), _session(start.name, read, write) as session:
            yield ToolServer(start.name, session)
    except BaseExceptionGroup as group:
        raise first_of(group) from None
    except httpx2.HTTPError as error:
        raise _lost(error) from None


def _lost(error: BaseException) -> Unavailable:
    return Unavailable(f"the server of tools is lost: {cut(f'{type(error).__name__}: {error}', 300)}")


@asynccontextmanager
async def _command_streams(start: ToolServerStart) -> AsyncIterator[tuple[Any, Any]]:
    environment = {**os.environ, **start.environment}
    async with stdio_server(start.command, environment) as server, anyio.create_task_group() as tasks:
        tasks.start_soon(server.run)
        yield server.incoming, server.outgoing
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def _url_streams(start: ToolServerStart) -> AsyncIterator[tuple[Any, Any]]:
    waits = httpx2.Timeout(LIST_SECONDS, read=None)
    client = httpx2.AsyncClient(headers=start.headers, timeout=waits, trust_env=False, transport=BoundedTransport())
    async with client, streamable_http_client(start.url, http_client=client) as streams:
        yield streams[0], streams[1]


async def serve_tools(start: ToolServerStart) -> None:
    """Serve the gateway until the server of tools ends. Raises what :func:`tool_server` raises."""
    async with tool_server(start) as server:
        with zmq.Context() as context:
            await EgressServer(context, start.endpoint, server.handlers()).serve()


@asynccontextmanager
async def _session(name: str, read: Any, write: Any) -> AsyncIterator[CheckedSession]:
    """Open a session and greet. Raises Unavailable if the server does not greet as one should."""
    about = mcp_types.Implementation(name="inferd", version="1")
    async with CheckedSession(read, write, about) as session:
        try:
            with anyio.fail_after(START_SECONDS):
                await greet(session)
        except (TimeoutError, MCPError, RuntimeError, ValueError) as error:
            why = cut(str(error), 300) or f"nothing came within {START_SECONDS:g} s"
            raise Unavailable(f"{name} does not greet as an MCP server does: {why}") from None
        yield session


class CheckedSession(ClientSession):
    """A session in which no check of a result takes long: a server's schema may have a pattern that backtracks.

    ``checks``: held by each check. Between two the loop has its turn, so that other calls end in their time.
    """

    def __init__(self, read: Any, write: Any, about: mcp_types.Implementation) -> None:
        super().__init__(read, write, client_info=about)
        self.checks = anyio.Lock()

    async def validate_tool_result(self, name: str, result: mcp_types.CallToolResult) -> None:
        """Raise RuntimeError for a result that its tool's schema does not allow, CheckTooLong where that takes too long."""
        async with self.checks:
            await BoundedSteps(super().validate_tool_result(name, result), CHECK_SECONDS)


class BoundedTransport(httpx2.AsyncHTTPTransport):
    """HTTP whose answers have a limit, except streams of events, whose every event has one; all together have one a minute."""

    def __init__(self) -> None:
        super().__init__()
        self._meter = IncomingMeter()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request. Raises LimitExceeded for too many: a stream that its server ends is asked for again."""
        self._meter.count(0, time.monotonic())
        request.headers["Accept-Encoding"] = "identity"
        response = await super().handle_async_request(request)
        if response.headers.get("content-encoding", "identity").lower() != "identity":  # its limits are of what is sent
            await response.aclose()
            raise Unavailable("the server of tools answers in an encoding that nobody asked for")
        events = "text/event-stream" in response.headers.get("content-type", "")
        response.stream = BoundedBody(response.stream, self._meter, events=events)
        return response


class BoundedBody(httpx2.AsyncByteStream):
    """A body that ends with an error at MAX_MESSAGE_BYTES, unless it is a stream of events, or at a message of too many parts."""

    def __init__(self, stream: Any, meter: IncomingMeter, *, events: bool) -> None:
        self._stream = stream
        self._meter = meter
        self._events = events

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size, parts = 0, ContainerMeter()
        async for chunk in self._stream:
            lines = chunk.count(b"\n") + chunk.count(b"\r")
            self._meter.count(len(chunk), time.monotonic(), lines / LINES_OF_AN_EVENT if self._events else 0)
            (parts.feed_events if self._events else parts.feed)(chunk)
            size += len(chunk)
            if size > MAX_MESSAGE_BYTES and not self._events:
                text = f"the server of tools answers more than {MAX_MESSAGE_BYTES} bytes"
                raise LimitExceeded(text, limit="mcp_message_bytes", value=MAX_MESSAGE_BYTES)
            yield chunk

    async def aclose(self) -> None:
        """Close the connection."""
        await self._stream.aclose()


def first_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the error that a group of them is about: one of ours if there is one."""
    flat: Sequence[BaseException] = list(_flat(group))
    own = next((error for error in flat if isinstance(error, InferdError)), None)
    return own or (_lost(flat[0]) if isinstance(flat[0], LOST) else flat[0])


def _flat(group: BaseExceptionGroup[BaseException]) -> Any:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _flat(error)
        else:
            yield error


def child_main(child: Child) -> int:
    """Serve until the server or the gateway ends. Returns the exit code."""
    start = child.settings(ToolServerStart)
    os.chdir(start.home)
    logging.disable()  # the client tells of every odd message of a server that may send many
    child.seal()
    os.nice(NICENESS)
    return exit_code(lambda: anyio.run(serve_tools, start))
