"""``mcp.*``: servers of tools (Model Context Protocol) that the operator named, one per tenant, by name.

Resources, prompts and contents are as the protocol writes them, as JSON objects, within limits.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from inferd.protocol.carrying import shown
from inferd.protocol.errors import InvalidRequest
from inferd.protocol.operations import Done, operation

DEFAULT_CALL_TIMEOUT = 60.0
MAX_CALL_TIMEOUT = 600.0
SERVER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class McpServers:
    """Names of servers that this caller may connect to."""

    servers: list[str]


@dataclass(frozen=True)
class McpConnected:
    """What a server says about itself. ``offers``: which of tools, resources and prompts it has."""

    server: str
    title: str = ""
    version: str = ""
    instructions: str = ""
    offers: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class McpTool:
    """A tool: ``parameters`` is the JSON Schema of its arguments, a valid one."""

    name: str
    description: str
    parameters: dict[str, Any]
    result: dict[str, Any] | None = None


@dataclass(frozen=True)
class McpTools:
    """A server's tools. ``left_out``: those that cannot be used, each with the reason."""

    tools: list[McpTool]
    left_out: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class McpToolResult:
    """What a tool answered: ``content`` as the protocol writes it, ``structured`` where there is a JSON value."""

    content: list[dict[str, Any]]
    structured: Any = None
    is_error: bool = False


@dataclass(frozen=True)
class McpItems:
    """Resources, prompts, contents or messages, as JSON objects."""

    items: list[dict[str, Any]]
    description: str = ""


@operation("mcp.servers", McpServers, by_gateway=True)
@dataclass(frozen=True)
class ListMcpServers:
    """Ask which servers there are."""


@operation("mcp.connect", McpConnected, by_gateway=True)
@dataclass(frozen=True)
class ConnectMcp:
    """Have a server started, or connected to, if it is not yet."""

    server: str


@operation("mcp.list_tools", McpTools, by_gateway=True)
@dataclass(frozen=True)
class ListMcpTools:
    """Ask for a server's tools."""

    server: str


@operation("mcp.call_tool", McpToolResult, by_gateway=True)
@dataclass(frozen=True)
class CallMcpTool:
    """Call a tool."""

    server: str
    tool: str
    arguments: dict[str, Any] = field(default_factory=dict)
    timeout_s: float = DEFAULT_CALL_TIMEOUT


@operation("mcp.list_resources", McpItems, by_gateway=True)
@dataclass(frozen=True)
class ListMcpResources:
    """Ask for a server's resources."""

    server: str


@operation("mcp.read_resource", McpItems, by_gateway=True)
@dataclass(frozen=True)
class ReadMcpResource:
    """Ask for what a resource holds."""

    server: str
    uri: str


@operation("mcp.list_prompts", McpItems, by_gateway=True)
@dataclass(frozen=True)
class ListMcpPrompts:
    """Ask for a server's prompts."""

    server: str


@operation("mcp.get_prompt", McpItems, by_gateway=True)
@dataclass(frozen=True)
class GetMcpPrompt:
    """Ask for a prompt's messages."""

    server: str
    prompt: str
    arguments: dict[str, str] = field(default_factory=dict)


@operation("mcp.offer", Done, by_gateway=True)
@dataclass(frozen=True)
class OfferMcp:
    """Offer a server of tools of one's own to the programs of the tenant; ``run``: to one run of them alone."""

    server: str
    run: str = ""


@operation("mcp.withdraw", Done, by_gateway=True)
@dataclass(frozen=True)
class WithdrawMcp:
    """Offer a server no more: calls that wait for it end."""

    server: str


@dataclass(frozen=True)
class RelayedMcpCall:
    """A program's call of a server that was offered: the operation, with its request except the server's name."""

    number: int
    op: str
    request: dict[str, Any]


@operation("mcp.next_call", RelayedMcpCall, by_gateway=True)
@dataclass(frozen=True)
class NextMcpCall:
    """Wait for the next call of a server that one offers."""

    server: str


@operation("mcp.answer", Done, by_gateway=True)
@dataclass(frozen=True)
class AnswerMcpCall:
    """Answer a call: with a reply of its operation as a JSON object, or with what went wrong."""

    server: str
    number: int
    reply: dict[str, Any] | None = None
    problem: str = ""


def check_server_name(name: str) -> None:
    """Raise InvalidRequest for what is no server's name."""
    if not SERVER_NAME.fullmatch(name):
        raise InvalidRequest(f"the name of a server of tools must match {SERVER_NAME.pattern}, not {shown(name)}")


def check_call_timeout(seconds: float) -> None:
    """Raise InvalidRequest for a time that no call may take."""
    if not 0 < seconds <= MAX_CALL_TIMEOUT:
        raise InvalidRequest(f"timeout must be above 0 and at most {MAX_CALL_TIMEOUT:g} seconds, not {seconds}")
