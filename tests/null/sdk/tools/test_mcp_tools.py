"""Tools of MCP servers in a run of tools: names, results and errors of servers that may say anything."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from inferd import InvalidRequest, ProgramError, mcp
from inferd.protocol.mcp import CallMcpTool, ConnectMcp, ListMcpTools, McpConnected, McpTool, McpToolResult, McpTools
from inferd.tools import ToolFunction
from inferd.transport import transport_in_force

SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


class Server:
    """A server with these tools, all of which answer alike."""

    def __init__(self, names: list[str], answer: McpToolResult) -> None:
        self.names, self.answer = names, answer
        self.called: list[CallMcpTool] = []

    async def call(self, request: Any) -> Any:
        match request:
            case ConnectMcp():
                return McpConnected(request.server)
            case ListMcpTools():
                return McpTools([McpTool(name, f"It is {name}.", SCHEMA) for name in self.names])
        self.called.append(request)
        return self.answer


def use(server: Server, program: Callable[[mcp.McpServer], Any]) -> Any:
    async def run() -> Any:
        async with mcp.connect("notes") as connected:
            return await program(connected)

    with transport_in_force(server):
        return asyncio.run(run())


def test_a_servers_tools_become_tools() -> None:
    server = Server(["find/it.now"], McpToolResult([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]))

    async def program(connected: mcp.McpServer) -> tuple[ToolFunction, str]:
        (found,) = await connected.tools("notes_")
        return found, await found.run('{"text": "x"}')

    found, text = use(server, program)
    assert (found.name, found.description) == ("notes_find_it_now", "It is find/it.now.")
    assert found.parameters == SCHEMA
    assert text == "a\nb"
    assert (server.called[0].tool, server.called[0].arguments) == ("find/it.now", {"text": "x"})


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (McpToolResult([], {"sum": 3}), '{"sum": 3}'),
        (McpToolResult([{"type": "image", "data": "..."}]), "(no text, but image)"),
        (McpToolResult([]), "(nothing)"),
    ],
)
def test_results_without_text_are_told_all_the_same(answer: McpToolResult, text: str) -> None:
    async def program(connected: mcp.McpServer) -> Any:
        return await (await connected.tools())[0].run("{}")

    assert use(Server(["f"], answer), program) == text


def test_an_error_of_a_tool_is_one() -> None:
    async def program(connected: mcp.McpServer) -> Any:
        return await (await connected.tools())[0].run("{}")

    with pytest.raises(ProgramError, match="no such note"):
        use(Server(["f"], McpToolResult([{"type": "text", "text": "no such note"}], is_error=True)), program)


def test_a_tool_of_a_closed_connection_says_so() -> None:
    async def program(connected: mcp.McpServer) -> Any:
        return (await connected.tools())[0]

    server = Server(["f"], McpToolResult([]))
    left = use(server, program)
    with pytest.raises(InvalidRequest, match="not connected"):
        asyncio.run(left.run("{}"))
