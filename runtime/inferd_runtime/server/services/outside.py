"""The families that reach the world outside of the server: HTTP and MCP, with the processes that do it for them."""

from __future__ import annotations

import logging
import re
import secrets
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio.abc
import zmq

from inferd.protocol import InvalidRequest, Unavailable
from inferd_runtime.isolation.kinds import ChildKind
from inferd_runtime.isolation.order import Access, Launch, ResourceLimits
from inferd_runtime.server.egress.fetcher_process import FetcherStart, fetcher_launch
from inferd_runtime.server.egress.process import EgressLaunch, EgressProcess
from inferd_runtime.server.egress.rules import read_rules
from inferd_runtime.server.egress.tool_start import ToolServerStart
from inferd_runtime.server.services.call_log import CallLog
from inferd_runtime.server.services.http import HttpService
from inferd_runtime.server.services.mcp import MIB, McpService
from inferd_runtime.server.services.mcp_offers import Offers
from inferd_runtime.server.services.mcp_servers import ServerEntry, read_servers
from inferd_runtime.server.services.table import ServiceTable
from inferd_runtime.server.tenancy.quotas import QuotasOf
from inferd_runtime.server.tenancy.secret_store import Secret, SecretStore
from inferd_runtime.settings.settings import Settings

TOOL_MODULE = "inferd_runtime.server.egress.mcp_process"
TOOL_FILES = 1024
UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
log = logging.getLogger("inferd.storage")


@dataclass(frozen=True)
class OutsideWiring:
    """What the processes are made of. ``directory``: private to the runtime; homes of tool servers are made in it."""

    context: zmq.Context[Any]
    tasks: anyio.abc.TaskGroup
    endpoint: Callable[[str], str]
    directory: Path


class LazySecrets:
    """The operator's secrets, whose file is opened when a program first uses one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._store: SecretStore | None = None

    def find(self, name: str, tenant: str) -> Secret:
        """Return a secret. Raises NotFound, and Unavailable."""
        if self._store is None:
            try:
                self._store = SecretStore(self._path)
            except InvalidRequest as error:  # what is wrong with it is the operator's business
                log.error("%s", error.message)
                raise Unavailable("the server's secrets cannot be read: its log says why") from None
        return self._store.find(name, tenant)

    def close(self) -> None:
        """Close the file."""
        if self._store is not None:
            self._store.close()


@dataclass(frozen=True)
class OutsideServices:
    """What the two families hold. Close it at the end; processes end with their tasks."""

    fetcher: EgressProcess
    secrets: LazySecrets
    http: HttpService

    def close(self) -> None:
        """Close what is a file."""
        self.secrets.close()


def join_outside(
    table: ServiceTable, settings: Settings, wiring: OutsideWiring, quotas: QuotasOf, call_log: CallLog,
    offers: Offers | None = None,
) -> OutsideServices:  # fmt: skip
    """Answer ``http.*`` and ``mcp.*`` from now on. ``offers``: where clients' servers of tools are known, by default here.

    Raises InvalidRequest for settings that cannot be read.
    """
    secrets_file = LazySecrets(settings.secrets)
    trusted = _read_certificates(settings.http_ca)

    def fetcher(endpoint: str) -> Launch:
        return fetcher_launch(FetcherStart(endpoint, trusted), require_all=settings.require_isolation)

    process = EgressProcess(_launch("the fetcher", fetcher, wiring))
    rules = read_rules(settings.http_allow)
    http = HttpService(process, rules, secrets_file.find, quotas, call_log, settings.http_body_bytes)
    table.join(http)
    start = ToolServers(settings, wiring).process
    tools = McpService(
        read_servers(settings.mcp_file), start, call_log, offers=offers, memory_mb=settings.mcp_memory_mb
    )
    table.join(tools)
    wiring.tasks.start_soon(tools.sweep)
    return OutsideServices(process, secrets_file, http)


class ToolServers:
    """Makes the processes that speak to servers of tools."""

    def __init__(self, settings: Settings, wiring: OutsideWiring) -> None:
        self._settings = settings
        self._wiring = wiring

    def process(self, tenant: str, name: str, entry: ServerEntry) -> EgressProcess:
        """Return the process of a tenant for a server; it starts with its first call, each time with a home of its own."""

        def launch(endpoint: str) -> Launch:
            home = self._wiring.directory / "tools" / f"{UNSAFE.sub('_', tenant)}-{name}-{secrets.token_hex(4)}"
            home.mkdir(parents=True, exist_ok=True, mode=0o700)
            return tool_launch(endpoint, name, str(home), entry, self._settings)

        started = _launch(f"the server of tools {name}", launch, self._wiring)
        return EgressProcess(replace(started, clear=_remove_home))


def tool_launch(endpoint: str, name: str, home: str, entry: ServerEntry, settings: Settings) -> Launch:
    """Return how to start the process of a server: it reads what the operator says, and writes there and to its own home.

    Each of its processes may take as much memory as all of the tenant's together, which :meth:`McpService.look` adds up.
    """
    command = (entry.command, *entry.args) if entry.command else ()
    environment = {"HOME": home, "TMPDIR": home, **entry.env}
    start = ToolServerStart(endpoint, name, home, command, environment, entry.url, entry.headers)
    return Launch(
        TOOL_MODULE, ChildKind.TOOL_SERVER, settings=start, access=Access(tuple(entry.read), (home, *entry.write)),
        limits=ResourceLimits(memory_bytes=settings.mcp_memory_mb * MIB, open_files=TOOL_FILES),
        require_all=settings.require_isolation,
    )  # fmt: skip


def _remove_home(launch: Launch) -> None:
    """Remove what a server of tools has left: each start leaves as much as it likes, and a tenant causes many."""
    assert isinstance(launch.settings, ToolServerStart)
    shutil.rmtree(launch.settings.home, ignore_errors=True)


def _launch(name: str, launch: Callable[[str], Launch], wiring: OutsideWiring) -> EgressLaunch:
    return EgressLaunch(name, launch, wiring.endpoint, wiring.context, wiring.tasks)


def _read_certificates(path: Path | None) -> str:
    try:
        return "" if path is None else path.expanduser().read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"http_ca: {path} cannot be read: {error}") from None
