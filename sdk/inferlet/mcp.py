"""Servers of tools (Model Context Protocol). Everything blocks, and is JSON text as the protocol writes it."""

from __future__ import annotations

import json
from typing import Any

from inferd.protocol import InvalidRequest
from inferd.protocol.mcp import (
    CallMcpTool,
    ConnectMcp,
    GetMcpPrompt,
    ListMcpPrompts,
    ListMcpResources,
    ListMcpServers,
    ListMcpTools,
    McpItems,
    McpTool,
    McpToolResult,
    ReadMcpResource,
)
from inferd.transport import current_port
from inferlet.blocking import call


def available_servers() -> list[str]:
    """Return the names of the servers that this program may connect to."""
    return list(call(current_port(), ListMcpServers()).servers)


def connect(name: str) -> McpSession:
    """Connect to a server. Raises NotFound, Forbidden, and Unavailable."""
    return McpSession(name)


class McpSession:
    """A server that answers. Made by :func:`connect`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._port = current_port()
        call(self._port, ConnectMcp(name))

    def list_tools(self) -> str:
        """Return ``{"tools": [{"name", "description", "inputSchema"}, ...]}``."""
        tools = call(self._port, ListMcpTools(self.name)).tools
        return json.dumps({"tools": [_tool(tool) for tool in tools]})

    def call_tool(self, name: str, args: str = "{}") -> str:
        """Call a tool; ``args`` is the JSON text of an object. Returns ``{"content": [...], "isError": ...}``."""
        result: McpToolResult = call(self._port, CallMcpTool(self.name, name, _object(args)))
        answer: dict[str, Any] = {"content": result.content, "isError": result.is_error}
        if result.structured is not None:
            answer["structuredContent"] = result.structured
        return json.dumps(answer)

    def list_resources(self) -> str:
        """Return ``{"resources": [...]}``."""
        return json.dumps({"resources": self._items(ListMcpResources(self.name)).items})

    def read_resource(self, uri: str) -> str:
        """Return ``{"contents": [...]}``."""
        return json.dumps({"contents": self._items(ReadMcpResource(self.name, uri)).items})

    def list_prompts(self) -> str:
        """Return ``{"prompts": [...]}``."""
        return json.dumps({"prompts": self._items(ListMcpPrompts(self.name)).items})

    def get_prompt(self, name: str, args: str = "{}") -> str:
        """Return ``{"description", "messages": [...]}``; ``args`` is the JSON text of an object."""
        found = self._items(GetMcpPrompt(self.name, name, _object(args)))
        return json.dumps({"description": found.description, "messages": found.items})

    def _items(self, request: Any) -> McpItems:
        items: McpItems = call(self._port, request)
        return items


def _tool(tool: McpTool) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "inputSchema": tool.parameters}


def _object(args: str | dict[str, Any] | None) -> dict[str, Any]:
    value = json.loads(args or "{}") if args is None or isinstance(args, str) else args
    if not isinstance(value, dict):
        raise InvalidRequest(f"the arguments of a tool or prompt are a JSON object, not {type(value).__name__}")
    return value
