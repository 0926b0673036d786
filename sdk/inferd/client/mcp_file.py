"""A file that names servers of tools, as other hosts of MCP have it too. Pure: nothing is started here.

{"mcpServers": {
    "files": {"command": "mcp-files", "args": ["."], "env": {"KEY": "${FILES_KEY}"}},
    "search": {"type": "http", "url": "https://tools.example.com/mcp", "headers": {"Authorization": "Bearer ${TOKEN:-none}"}}}}
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inferd.protocol import InvalidRequest, shown
from inferd.protocol.mcp import check_server_name

HEADS = ("mcpServers", "servers")
VARIABLE = re.compile(r"\$\{(?:env:)?(\w+)(?::-([^}]*))?\}")
KINDS: Mapping[str, tuple[str, ...]] = {
    "command": ("", "stdio"),
    "url": ("", "http", "streamable-http", "streamable_http"),
}
"""What ``type`` may say of a server that has the key."""


@dataclass(frozen=True)
class McpEntry:
    """How to reach a server: a command, or a URL of streamable HTTP."""

    command: str = ""
    args: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    cwd: str | None = None
    url: str = ""
    headers: dict[str, str] = field(default_factory=dict)


def read_mcp_file(path: Path, variables: Mapping[str, str]) -> dict[str, McpEntry]:
    """Return the servers of a file by name, without those that are ``"disabled": true``.

    ``${NAME}``, ``${env:NAME}`` and ``${NAME:-default}`` stand for ``variables``. Keys that are other hosts' own are not read.
    Raises InvalidRequest, which names the server, for what is no such file.
    """
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"{path} is no file of MCP servers: {error}") from None
    servers = next((told[head] for head in HEADS if isinstance(told, dict) and head in told), None)
    if not isinstance(servers, dict) or not all(isinstance(entry, dict) for entry in servers.values()):
        raise InvalidRequest(f"{path} is no file of MCP servers: it has no object {HEADS[0]} of objects")
    return {name: _entry(name, entry, variables) for name, entry in servers.items() if not entry.get("disabled")}


def _entry(name: str, told: dict[str, Any], variables: Mapping[str, str]) -> McpEntry:
    check_server_name(name)
    where = f"the MCP server {name}"
    keys = [key for key in KINDS if told.get(key)]
    if len(keys) != 1:
        raise InvalidRequest(f"{where}: it needs a command or a url, and not both")
    kind = told.get("type", "")
    if kind not in KINDS[keys[0]]:
        raise InvalidRequest(
            f"{where}: type {shown(str(kind))} is not carried; commands (stdio) and streamable HTTP are"
        )
    filled = {key: _filled(told[key], variables, where) for key in McpEntry.__dataclass_fields__ if told.get(key)}
    wanted = {"args": list, "env": dict, "headers": dict}
    for key, value in filled.items():
        flat = value if isinstance(value, list) else list(value.values()) if isinstance(value, dict) else [value]
        if not isinstance(value, wanted.get(key, str)) or not all(isinstance(one, str) for one in flat):
            raise InvalidRequest(f"{where}: {key} must be text, or hold nothing but text")
    return McpEntry(**filled)


def _filled(value: Any, variables: Mapping[str, str], where: str) -> Any:
    """Return a value with its variables put in."""
    if isinstance(value, list):
        return [_filled(one, variables, where) for one in value]
    if isinstance(value, dict):
        return {key: _filled(one, variables, where) for key, one in value.items()}
    if not isinstance(value, str):
        return value

    def put(found: re.Match[str]) -> str:
        if found[1] not in variables and found[2] is None:
            raise InvalidRequest(f"{where}: the environment has no {found[1]}")
        return variables.get(found[1], found[2] or "")

    return VARIABLE.sub(put, value)
