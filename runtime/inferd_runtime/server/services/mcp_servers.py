"""The servers of tools that the operator named: a file of JSON, in the form that other clients of the protocol read as well.

    {"mcpServers": {
        "files": {"command": "mcp-files", "args": ["/srv/docs"], "read": ["/srv/docs"], "tenants": ["ann", "bob"]},
        "search": {"url": "https://tools.example.com/mcp", "headers": {"Authorization": "Bearer ..."}, "tenants": ["*"]}}}

It may hold secrets, so nobody else may be able to read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import msgspec

from inferd.program.manifest import NAME
from inferd.protocol import Forbidden, InvalidRequest, NotFound, shown
from inferd_runtime.server.egress.origins import read_address
from inferd_runtime.server.tokens_file import read_private

EVERY_TENANT = "*"
OWN_TENANT = "default"


class ServerEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One server: a command, or a URL.

    ``tenants``: whose programs may use it; by default the server's own tenant. ``read``, ``write``: folders and files that
    a command may use beside the system's programs and its own empty home.
    """

    command: str = ""
    args: list[str] = []
    env: dict[str, str] = {}
    url: str = ""
    headers: dict[str, str] = {}
    tenants: tuple[str, ...] = (OWN_TENANT,)
    read: list[str] = []
    write: list[str] = []
    type: str = ""

    def allows(self, tenant: str) -> bool:
        """Return True if a tenant's programs may use it."""
        return EVERY_TENANT in self.tenants or tenant in self.tenants


class _ServersFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"servers": "mcpServers"}):
    servers: dict[str, ServerEntry]


class ServerTable:
    """The servers by name."""

    def __init__(self, servers: Mapping[str, ServerEntry]) -> None:
        self._servers = servers

    def names(self, tenant: str, declared: list[str] | None) -> list[str]:
        """Return the servers that a tenant's program may use. ``declared``: what its manifest names; None for a script."""
        return [
            name
            for name, entry in sorted(self._servers.items())
            if entry.allows(tenant) and (declared is None or name in declared)
        ]

    def find(self, name: str, tenant: str, declared: list[str] | None) -> ServerEntry:
        """Return a server that may be used. Raises NotFound, which does not tell of other tenants' servers, and Forbidden."""
        entry = self._servers.get(name)
        if entry is None or not entry.allows(tenant):
            raise NotFound(f"this tenant has no server of tools named {shown(name)}: --mcp-file names them")
        check_declared(name, declared)
        return entry


def check_declared(name: str, declared: list[str] | None) -> None:
    """Raise Forbidden if a program's manifest does not name a server."""
    if declared is not None and name not in declared:
        raise Forbidden(f"the program's manifest does not name {name}: add it to `mcp` in [tool.inferd]")


def read_servers(path: Path | None) -> ServerTable:
    """Read the operator's file; without one there are no servers. Raises InvalidRequest that names what is wrong."""
    if path is None:
        return ServerTable({})
    if find_spec("mcp") is None:
        raise InvalidRequest(f"the servers of {path} need a package that is not installed: pip install 'inferd[mcp]'")
    try:
        servers = msgspec.json.decode(read_private(path, "the file of MCP servers"), type=_ServersFile).servers
    except msgspec.MsgspecError as error:
        raise InvalidRequest(f"the file of MCP servers {path}: {error}") from None
    for name, entry in servers.items():
        _check_entry(name, entry, f"{path}, server {name!r}")
    return ServerTable(servers)


def _check_entry(name: str, entry: ServerEntry, where: str) -> None:
    if not NAME.fullmatch(name):
        raise InvalidRequest(f"{where}: its name must match {NAME.pattern}")
    if bool(entry.command) == bool(entry.url):
        raise InvalidRequest(f"{where}: it needs a command or a url, and not both")
    if entry.url:
        read_address(entry.url)
    if entry.url and (entry.args or entry.env or entry.read or entry.write):
        raise InvalidRequest(f"{where}: args, env, read and write are for commands")
    if entry.command and entry.headers:
        raise InvalidRequest(f"{where}: headers are for a url")
    if "\0" in "".join([entry.command, *entry.args, *entry.env, *entry.env.values()]):
        raise InvalidRequest(f"{where}: a command has no NUL characters")
