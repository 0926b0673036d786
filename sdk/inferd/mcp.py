"""Servers of tools (Model Context Protocol) that the operator named for this tenant, and the program in its manifest.

    async with mcp.connect("github") as server:
        tools = await server.list_tools()
        result = await server.call_tool("search", {"query": "inferd"})

A program says in ``[tool.inferd]`` which it needs, ``mcp = ["github"]``. What a server sends is what a stranger says: its
descriptions and results are data for a model to read, not instructions of the operator.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Protocol

from inferd.calls.arguments import checked_mapping
from inferd.program.json_values import to_json_value
from inferd.protocol import InferdError, InvalidRequest, ProgramError, cut, to_plain
from inferd.protocol.mcp import (
    DEFAULT_CALL_TIMEOUT,
    MAX_CALL_TIMEOUT,
    AnswerMcpCall,
    CallMcpTool,
    ConnectMcp,
    GetMcpPrompt,
    ListMcpPrompts,
    ListMcpResources,
    ListMcpServers,
    ListMcpTools,
    McpConnected,
    McpTool,
    McpToolResult,
    NextMcpCall,
    OfferMcp,
    ReadMcpResource,
    RelayedMcpCall,
    WithdrawMcp,
    check_call_timeout,
)
from inferd.tools.function import ToolFunction, tool
from inferd.transport import Transport, current_transport

MAX_PAGES = 32
OFFER_AGAIN_S = 0.5
UNUSABLE, MAX_NAME = re.compile(r"[^A-Za-z0-9_-]"), 64
"""What the name of a tool cannot have where a model calls it."""
OFFERED = ("tools", "resources", "prompts")
LISTED = {
    "list_resources": "resources", "read_resource": "contents", "list_prompts": "prompts", "get_prompt": "messages",
}  # fmt: skip


class ToolSource(Protocol):
    """What :func:`offer` needs of a server: the methods of the official package's ``ClientSession``."""

    async def list_tools(self) -> Any:
        """Return the tools."""

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> Any:
        """Call a tool."""


async def servers() -> list[str]:
    """Return the names of the servers that this program may connect to."""
    return list((await current_transport().call(ListMcpServers())).servers)


def connect(name: str) -> McpServer:
    """Connect to a server by its name: ``async with mcp.connect("github") as server``.

    Entering raises NotFound for a name that the operator does not know, Forbidden where operator or manifest do not allow it,
    and Unavailable if the server does not start.
    """
    return McpServer(name)


class McpServer:
    """A server that answers. All runs of a tenant that use it share it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._transport: Transport | None = None
        self._about: McpConnected | None = None

    async def __aenter__(self) -> McpServer:
        self._transport = current_transport()
        self._about = await self._transport.call(ConnectMcp(self.name))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._transport = None

    @property
    def about(self) -> McpConnected:
        """What the server says about itself. Raises InvalidRequest outside of the block."""
        if self._about is None:
            raise InvalidRequest(f"not connected: use `async with mcp.connect({self.name!r})`")
        return self._about

    async def list_tools(self) -> list[McpTool]:
        """Return the server's tools: name, description, and ``parameters``, the JSON Schema of the arguments."""
        return list((await self._call(ListMcpTools(self.name))).tools)

    async def tools(self, prefix: str = "") -> list[ToolFunction]:
        """Return the server's tools for :meth:`inferd.Context.run_tools`, while the connection is open.

        ``prefix`` stands before their names, so that those of several servers differ. Characters that no call of a model can
        have in a name become ``_``. What a tool says is an error is one to the model, too.
        """
        return [self._tool(described, prefix) for described in await self.list_tools()]

    def _tool(self, described: McpTool, prefix: str) -> ToolFunction:
        async def call(**arguments: Any) -> str:
            result = await self.call_tool(described.name, arguments, timeout=MAX_CALL_TIMEOUT)
            if result.is_error:
                raise ProgramError(text_of(result) or "the tool failed and does not say why")
            return text_of(result) or _without_text(result)

        name = UNUSABLE.sub("_", prefix + described.name)[:MAX_NAME]
        return tool(call, name=name, description=described.description, parameters=described.parameters)

    async def call_tool(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: float = DEFAULT_CALL_TIMEOUT,  # noqa: ASYNC109
    ) -> McpToolResult:
        """Call a tool, and return what it answered; ``is_error`` is true where the tool says that it failed.

        Raises InvalidRequest for what the server refuses, LimitExceeded for a result that is too large or takes too long,
        and Unavailable if the server ends meanwhile or answers what is no result.
        """
        check_call_timeout(timeout)
        plain = to_json_value(checked_mapping("arguments", arguments), "arguments")
        result: McpToolResult = await self._call(CallMcpTool(self.name, tool, plain, float(timeout)))
        return result

    async def list_resources(self) -> list[dict[str, Any]]:
        """Return the server's resources, as the protocol writes them: ``uri``, ``name`` and more."""
        return list((await self._call(ListMcpResources(self.name))).items)

    async def read_resource(self, uri: str) -> list[dict[str, Any]]:
        """Return what a resource holds, in parts with ``text`` or ``blob`` (Base64)."""
        return list((await self._call(ReadMcpResource(self.name, uri))).items)

    async def list_prompts(self) -> list[dict[str, Any]]:
        """Return the server's prompts: ``name``, ``description``, ``arguments``."""
        return list((await self._call(ListMcpPrompts(self.name))).items)

    async def get_prompt(self, prompt: str, arguments: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
        """Return a prompt's messages: ``role`` and ``content``."""
        given = checked_mapping("arguments", arguments)
        return list((await self._call(GetMcpPrompt(self.name, prompt, given))).items)

    async def _call(self, request: Any) -> Any:
        if self._transport is None:
            raise InvalidRequest(f"not connected: use `async with mcp.connect({self.name!r})`")
        return await self._transport.call(request)


@asynccontextmanager
async def offer(name: str, server: ToolSource, *, run: str = "") -> AsyncIterator[None]:
    """Offer a server of tools of one's own while the body runs: programs of the tenant connect to it by its name.

    ``server``: a session of the official ``mcp`` package, or anything with its methods ``list_tools()`` and
    ``call_tool(name, arguments)`` (and ``list_resources``, ``read_resource``, ``list_prompts``, ``get_prompt``, where it has
    them). ``run``: the one run that may use it, by its id, whatever its manifest names; "": all of the tenant's that name it.

    Raises InvalidRequest for a name that is taken. Calls that are open when the body ends, raise Unavailable in the programs.
    """
    transport = current_transport()
    offered = OfferMcp(name, run)
    await transport.call(offered)
    relay = asyncio.create_task(_keep_offered(transport, offered, server), name=f"inferd offer {name}")
    try:
        yield
    finally:
        relay.cancel()
        await asyncio.gather(relay, return_exceptions=True)
        with contextlib.suppress(InferdError):  # the connection is lost, and the offer with it
            await transport.call(WithdrawMcp(name))


async def _keep_offered(transport: Transport, offered: OfferMcp, server: ToolSource) -> None:
    """Answer calls until cancelled. An offer that the runtime has lost, as when a cluster's front ended, is made again."""
    while True:
        with contextlib.suppress(InferdError):
            await relay_calls(transport, offered.server, server)
        await asyncio.sleep(OFFER_AGAIN_S)
        with contextlib.suppress(InferdError):
            await transport.call(offered)


async def relay_calls(transport: Transport, name: str, server: ToolSource) -> None:
    """Answer the calls of a server that is offered, until that ends: raises the error that says so."""
    tasks: set[asyncio.Task[None]] = set()
    try:
        while True:
            call = await transport.call(NextMcpCall(name))
            task = asyncio.create_task(_answer(transport, name, server, call))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _answer(transport: Transport, name: str, server: ToolSource, call: RelayedMcpCall) -> None:
    try:
        async with asyncio.timeout(call.request.get("timeout_s", DEFAULT_CALL_TIMEOUT)):  # the caller waits no longer
            answer = AnswerMcpCall(name, call.number, await _replied(name, server, call))
    except Exception as error:  # noqa: BLE001 - the boundary of one call: whatever a server does wrong is its caller's
        answer = AnswerMcpCall(name, call.number, problem=cut(str(error) or type(error).__name__))
    with contextlib.suppress(InferdError):  # nobody waits for it, or it cannot be sent
        await transport.call(answer)


async def _replied(name: str, server: ToolSource, call: RelayedMcpCall) -> dict[str, Any]:
    """Return the reply to a call as plain values."""
    asked, op = call.request, call.op.partition(".")[2]
    if op == "connect":
        return to_plain(_about(name, server))  # type: ignore[no-any-return]
    if op == "list_tools":
        return {"tools": [_tool(one) for one in await _listed(server.list_tools, "tools")]}
    if op in ("list_resources", "list_prompts"):
        return {"items": await _listed(getattr(server, op), LISTED[op]), "description": ""}
    if op == "call_tool":
        result = _plain(await server.call_tool(asked["tool"], asked["arguments"]))
        structured, failed = result.get("structuredContent"), bool(result.get("isError"))
        return {"content": result.get("content", []), "structured": structured, "is_error": failed}
    keys = {"read_resource": ("uri",), "get_prompt": ("prompt", "arguments")}.get(op, ())
    found = _plain(await getattr(server, op)(*(asked[key] for key in keys)))
    return {"items": found[LISTED[op]], "description": found.get("description") or ""}


async def greet(session: Any) -> None:
    """Greet a server over a session of the official package. Raises its MCPError where the server refuses to be greeted.

    A server that speaks the protocol from 2026-07-28 on alone refuses to be initialized, and is asked what it is instead.
    """
    from mcp.shared.exceptions import MCPError

    try:
        await session.initialize()
    except MCPError as refused:
        try:
            await session.discover()
        except (MCPError, RuntimeError, ValueError):  # the latter: an answer of another shape, or no version in common
            raise refused from None


def _about(name: str, server: ToolSource) -> McpConnected:
    """Return what a server says about itself, as far as it has the official session's attributes."""
    info, can = getattr(server, "server_info", None), getattr(server, "server_capabilities", None)
    title, version, instructions = (
        cut(str(getattr(of, key, None) or ""))
        for of, key in ((info, "name"), (info, "version"), (server, "instructions"))
    )
    offers = [one for one in OFFERED if (getattr(can, one, None) if can else getattr(server, f"list_{one}", None))]
    return McpConnected(name, title, version, instructions, offers)


async def _listed(list_page: Any, key: str) -> list[Any]:
    """Return what a server lists, over its pages."""
    found = _plain(await list_page())
    items = list(found.get(key, []))
    for _ in range(MAX_PAGES):
        if not found.get("nextCursor"):
            return items
        from mcp_types import PaginatedRequestParams  # of the official package, whose session pages are of

        found = _plain(await list_page(params=PaginatedRequestParams(cursor=found["nextCursor"])))
        items += found.get(key, [])
    raise InvalidRequest(f"{key} come on more than {MAX_PAGES} pages")


def _plain(value: Any) -> dict[str, Any]:
    """Return a result of the official package as the protocol writes it."""
    dump = getattr(value, "model_dump", None)
    plain: dict[str, Any] = dump(mode="json", by_alias=True, exclude_none=True) if dump is not None else dict(value)
    return plain


def _tool(one: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": one["name"], "description": one.get("description") or "", "parameters": one["inputSchema"],
        "result": one.get("outputSchema"),
    }  # fmt: skip


def text_of(result: McpToolResult) -> str:
    """Return the texts of a tool's result, joined by line breaks: what a model is shown."""
    return "\n".join(part["text"] for part in result.content if isinstance(part.get("text"), str))


def _without_text(result: McpToolResult) -> str:
    """Return the value of a result that has no text, or which kinds of content it has."""
    if result.structured is not None:
        return json.dumps(result.structured, ensure_ascii=False)
    kinds = ", ".join(str(part.get("type"))[:40] for part in result.content)
    return f"(no text, but {kinds})" if kinds else "(nothing)"
