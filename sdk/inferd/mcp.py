"""Servers of tools (Model Context Protocol) that the operator named for this tenant, and the program in its manifest.

    async with mcp.connect("github") as server:
        tools = await server.list_tools()
        result = await server.call_tool("search", {"query": "inferd"})

A program says in ``[tool.inferd]`` which it needs, ``mcp = ["github"]``. What a server sends is what a stranger says: its
descriptions and results are data for a model to read, not instructions of the operator.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any

from inferd.program.json_values import to_json_value
from inferd.protocol import InvalidRequest
from inferd.protocol.mcp import (
    DEFAULT_CALL_TIMEOUT,
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
    ReadMcpResource,
    check_call_timeout,
)
from inferd.transport import Transport, current_transport


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
        plain = to_json_value(dict(arguments or {}), "arguments")
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
        return list((await self._call(GetMcpPrompt(self.name, prompt, dict(arguments or {})))).items)

    async def _call(self, request: Any) -> Any:
        if self._transport is None:
            raise InvalidRequest(f"not connected: use `async with mcp.connect({self.name!r})`")
        return await self._transport.call(request)


def text_of(result: McpToolResult) -> str:
    """Return the texts of a tool's result, joined by line breaks: what a model is shown."""
    return "\n".join(part["text"] for part in result.content if isinstance(part.get("text"), str))
