"""``mcp.*``: servers of tools that the operator named, one process for each (tenant, server), shared by the tenant's runs.

The process (:mod:`inferd_runtime.server.egress.mcp_process`) speaks the protocol; here is who may use which, how much, how long.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.to_thread
import msgspec

from inferd.protocol import Done, InferdError, InvalidRequest, LimitExceeded, Unavailable
from inferd.protocol.mcp import (
    CallMcpTool,
    ConnectMcp,
    GetMcpPrompt,
    ListMcpPrompts,
    ListMcpResources,
    ListMcpServers,
    ListMcpTools,
    McpConnected,
    McpItems,
    McpServers,
    McpToolResult,
    McpTools,
    OfferMcp,
    ReadMcpResource,
    check_call_timeout,
)
from inferd_runtime.server.egress.process import EgressProcess
from inferd_runtime.server.processes.memory import memory_of
from inferd_runtime.server.services.call_log import CallLog
from inferd_runtime.server.services.caller import Caller
from inferd_runtime.server.services.mcp_offers import McpOffers, OfferedServer, Offers
from inferd_runtime.server.services.mcp_servers import ServerEntry, ServerTable, check_declared
from inferd_runtime.server.services.table import Handler
from inferd_runtime.server.tenancy.rates import MinuteBucket
from inferd_runtime.server.tenancy.shares import SharedPlaces, ShareRule

MAX_CALLS = 16
"""Calls of one tenant to one server that are open."""
CALLS_PER_MINUTE = 600
"""Of one tenant, to all servers."""
MAX_PROCESSES = 32
OTHER_SECONDS = 50.0
"""What a call that has no time of its own may take: longer than the process gives the server."""
MARGIN_SECONDS = 10.0
"""Behind a call's time, until its process is taken for hung. Its client tries for 5 s to tell a server that does not read."""
IDLE_SECONDS = 300.0
"""A server that nobody has asked anything for so long is ended."""
LIFE_SECONDS = 3600.0
"""A server is replaced by a fresh one after so long, between calls."""
SWEEP_SECONDS = 1.0
MEMORY_MB = 4096
MIB = 1 << 20
MAX_SHOWN = 128
"""Characters of a tool's name in logs: a program may write what it likes there."""
Measure = Callable[[Sequence[int]], Mapping[int, int]]
"""Returns the bytes that processes take, with all that they have started, by their ids. Called in a thread."""
StartProcess = Callable[[str, str, ServerEntry], EgressProcess]
"""Makes the process of a tenant for a server of a name; it starts with its first call."""
REPLIES: Mapping[type[Any], type[Any]] = {
    ConnectMcp: McpConnected, ListMcpTools: McpTools, CallMcpTool: McpToolResult, ListMcpResources: McpItems,
    ReadMcpResource: McpItems, ListMcpPrompts: McpItems, GetMcpPrompt: McpItems,
}  # fmt: skip


@dataclass
class HeldServer:
    """A tenant's process for a server. Times are monotonic seconds."""

    process: EgressProcess
    since: float
    used: float
    open: int = 0
    placed: bool = True
    """Whether it takes one of its tenant's places. One that has ended takes none, and is remembered for when it may start."""

    def finished(self, now: float) -> bool:
        """Return True if it is to be ended: nothing is open, and it was idle, or has lived, for too long."""
        return self.open == 0 and (now - self.used > IDLE_SECONDS or now - self.since > LIFE_SECONDS)


class McpService:
    """The family ``mcp``."""

    def __init__(
        self,
        servers: ServerTable,
        start: StartProcess,
        call_log: CallLog,
        clock: Callable[[], float] = time.monotonic,
        offers: Offers | None = None,
        memory_mb: int = MEMORY_MB,
        measure: Measure = memory_of,
    ) -> None:
        self._memory_mb = memory_mb
        self._measure = measure
        self._servers = servers
        self._start = start
        self._log = call_log
        self._clock = clock
        self._offers = offers or McpOffers()
        self._held: dict[tuple[str, str], HeldServer] = {}
        self._places = SharedPlaces(ShareRule(MAX_PROCESSES, MAX_PROCESSES // 2), "servers of tools", "")
        self._rates: dict[str, MinuteBucket] = {}

    def operations(self) -> Mapping[str, Handler]:
        """Return the handlers by their operations' wire names."""
        return {
            **self._offers.operations(),
            "mcp.servers": self.servers,
            "mcp.offer": self.offer,
            **{kind.op: self.ask for kind in REPLIES},
        }

    def closed(self, caller: Caller) -> None:
        """Drop what a caller that is gone has offered. The operator's servers outlive it."""
        self._offers.closed(caller)

    async def servers(self, caller: Caller, request: ListMcpServers) -> McpServers:
        """Return the names of the servers that a caller may use."""
        declared = _declared(caller)
        offered = [
            one.server
            for one in await self._offers.offered(caller)
            if one.own or declared is None or one.server in declared
        ]
        return McpServers(sorted({*self._servers.names(caller.tenant, declared), *offered}))

    async def offer(self, caller: Caller, request: OfferMcp) -> Done:
        """Take a client's server. Raises InvalidRequest for a name that the operator has given to the tenant."""
        if request.server in self._servers.names(caller.tenant, None):
            raise InvalidRequest(f"the operator has a server of tools named {request.server}: choose another name")
        done: Done = await self._offers.operations()["mcp.offer"](caller, request)
        return done

    async def ask(self, caller: Caller, request: Any) -> Any:
        """Pass a request on to its server's process, or to the client that offers it, and return what that answers."""
        offer = await self._offer(caller, request.server)
        if offer is None:
            entry = self._servers.find(request.server, caller.tenant, _declared(caller))
        elif not offer.own:
            check_declared(request.server, _declared(caller))
        seconds = OTHER_SECONDS
        if isinstance(request, CallMcpTool):
            check_call_timeout(request.timeout_s)
            seconds = request.timeout_s
        about = {"call": request.op, "server": request.server, "tool": getattr(request, "tool", "")[:MAX_SHOWN]}
        self._charge(caller, about)
        with self._logged(caller, about):
            if offer is not None:
                return await self._relayed(caller, request, seconds)
            with self._open(caller, request.server, entry) as held:
                return await self._asked(held, request, seconds)

    @contextmanager
    def _logged(self, caller: Caller, about: Mapping[str, Any]) -> Iterator[None]:
        """Log a call when the body ends, with how long it took and the code of its error."""
        started, outcome = self._clock(), "abandoned"
        try:
            yield
            outcome = ""
        except InferdError as error:
            outcome = error.code
            raise
        finally:
            figures = {"ms": round((self._clock() - started) * 1e3, 1), "error": outcome}
            self._log.note(caller, {key: value for key, value in {**about, **figures}.items() if value})

    async def sweep(self) -> None:
        """End servers that are finished, and those of tenants whose servers take too much memory, until cancelled."""
        while True:
            await anyio.sleep(SWEEP_SECONDS)
            self.tick(self._clock())
            await self.look()

    async def look(self) -> None:
        """End, of each tenant whose servers take more memory together than is allowed, the largest ones."""
        pids = {held.process.pid: key for key, held in self._held.items() if held.process.pid is not None}
        taken = await anyio.to_thread.run_sync(self._measure, list(pids)) if pids else {}
        total = Counter[str]()
        for pid, size in taken.items():
            total[pids[pid][0]] += size
        for pid, size in sorted(taken.items(), key=lambda one: one[1], reverse=True):
            tenant, name = key = pids[pid]
            held = self._held.get(key)
            if total[tenant] > self._memory_mb * MIB and held is not None and held.process.pid == pid:
                total[tenant] -= size
                self._log.refused(Caller(tenant, ""), {"call": "mcp.ended", "server": name, "bytes": size})
                self._end(key, held, self._too_much_memory(name))

    def _too_much_memory(self, name: str) -> LimitExceeded:
        text = (
            f"the server of tools {name} was ended: with the tenant's others it takes more than {self._memory_mb} MiB"
        )
        return LimitExceeded(text, limit="mcp_memory_mb", value=self._memory_mb, raise_with="fewer, or smaller, calls")

    def tick(self, now: float) -> None:
        """End the servers that are finished at ``now``."""
        for key, held in list(self._held.items()):
            if held.finished(now):
                self._end(key, held)
            elif held.open == 0 and not held.process.alive:
                self._leave_place(key[0], held)

    async def _asked(self, held: HeldServer, request: Any, seconds: float) -> Any:
        """Ask, and end a process that does not even say that its server is late. Starting it is not counted."""
        packed = msgspec.Raw(msgspec.msgpack.encode(request))
        if isinstance(request, CallMcpTool):
            request.arguments.clear()  # packed they are many times smaller, and counted as the request's bytes while they wait
        await held.process.started()
        with anyio.move_on_after(seconds + MARGIN_SECONDS) as waiting:
            return await held.process.call(request.op, packed, REPLIES[type(request)])
        if waiting.cancelled_caught:
            held.process.stop()
            raise Unavailable(f"the server of tools {request.server} hung, and was ended")

    async def _offer(self, caller: Caller, server: str) -> OfferedServer | None:
        """Return what is offered of that name. Nobody can offer what the operator has."""
        if server in self._servers.names(caller.tenant, None):
            return None
        return next((one for one in await self._offers.offered(caller) if one.server == server), None)

    async def _relayed(self, caller: Caller, request: Any, seconds: float) -> Any:
        with anyio.move_on_after(seconds):
            return await self._offers.call(caller, request, REPLIES[type(request)])
        text = f"{request.server} did not answer within {seconds:g} s"
        raise LimitExceeded(text, limit="mcp_call_s", value=seconds, raise_with="timeout=")

    def _charge(self, caller: Caller, about: Mapping[str, str]) -> None:
        """Count a call. Raises LimitExceeded if there were too many, which is told of a few times alone."""
        rate, now = self._rates.setdefault(caller.tenant, MinuteBucket()), self._clock()
        wait = rate.wait(CALLS_PER_MINUTE, now)
        if wait > 0:
            text = f"a tenant may make {CALLS_PER_MINUTE} calls a minute"
            error = _limit(text, "mcp_calls_per_minute", CALLS_PER_MINUTE, wait)
            self._log.refused(caller, {**about, "error": error.code})
            raise error
        rate.charge(CALLS_PER_MINUTE, now)

    @contextmanager
    def _open(self, caller: Caller, name: str, entry: ServerEntry) -> Iterator[HeldServer]:
        """Count a call while the body runs. Raises LimitExceeded."""
        key, now = (caller.tenant, name), self._clock()
        held = self._held.get(key)
        if held is None or not held.placed:
            self._places.take(caller.tenant)
        if held is None:
            held = self._held[key] = HeldServer(self._start(caller.tenant, name, entry), now, now)
        held.placed = True
        if held.open >= MAX_CALLS:
            raise _limit(f"{MAX_CALLS} calls of this server are open already", "mcp_open_calls", MAX_CALLS, 1.0)
        held.open += 1
        try:
            yield held
        finally:
            held.open -= 1
            held.used = self._clock()

    def _end(self, key: tuple[str, str], held: HeldServer, why: InferdError | None = None) -> None:
        held.process.stop(why)
        del self._held[key]
        self._leave_place(key[0], held)

    def _leave_place(self, tenant: str, held: HeldServer) -> None:
        if held.placed:
            self._places.give_back(tenant)
        held.placed = False


def _declared(caller: Caller) -> list[str] | None:
    return None if caller.manifest is None else caller.manifest.mcp


def _limit(message: str, name: str, value: float, wait: float) -> LimitExceeded:
    error = LimitExceeded(message, limit=name, value=value)
    error.detail["retry_after_s"] = round(wait, 3)
    return error
