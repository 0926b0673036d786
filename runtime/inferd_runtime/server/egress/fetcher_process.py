"""The process that fetches for programs: it speaks TLS and HTTP with strangers, and has none of the server's tokens or texts.

A request comes with the secrets that it needs, and with everything that is to be checked on the way.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass

import anyio
import anyio.abc
import zmq

from inferd.protocol import Done, NotFound
from inferd.protocol.http import AwaitHead, BodyChunk, CloseFetch, FetchBegun, ReadBody, ResponseHead, WriteBody
from inferd_runtime.isolation.child import Child
from inferd_runtime.isolation.kinds import ChildKind
from inferd_runtime.isolation.order import Launch, ResourceLimits
from inferd_runtime.server.egress.fetch import Fetch
from inferd_runtime.server.egress.link_child import EgressHandlers, EgressServer
from inferd_runtime.server.egress.messages import FetchOrder
from inferd_runtime.server.egress.resolver import Resolver

MODULE = "inferd_runtime.server.egress.fetcher_process"
MEMORY_BYTES = 2 << 30
FILES, THREADS = 4096, 256


@dataclass(frozen=True)
class FetcherStart:
    """What the process is told: where its gateway listens, and a file of certificates to trust beside the system's."""

    endpoint: str
    ca: str = ""


class FetchTable:
    """The fetches that are open, by the numbers that the gateway gave them. A fetch that has failed keeps its error."""

    def __init__(self, tasks: anyio.abc.TaskGroup, trusted: ssl.SSLContext, resolver: Resolver) -> None:
        self._tasks = tasks
        self._trusted = trusted
        self._resolver = resolver
        self._fetches: dict[int, Fetch] = {}

    def handlers(self) -> EgressHandlers:
        """Return what is answered."""
        return {
            "open": (FetchOrder, self.open),
            "fetch": (FetchOrder, self.fetch),
            "head": (AwaitHead, self.head),
            "write": (WriteBody, self.write),
            "read": (ReadBody, self.read),
            "close": (CloseFetch, self.close),
        }

    async def open(self, order: FetchOrder) -> FetchBegun:
        """Begin a fetch."""
        fetch = self._fetches[order.fetch] = Fetch(order, self._resolver, self._trusted)
        self._tasks.start_soon(fetch.run)
        return FetchBegun(order.fetch)

    async def fetch(self, order: FetchOrder) -> ResponseHead:
        """Begin a fetch, and wait for its response's head."""
        await self.open(order)
        return await self._find(order.fetch).head()

    async def head(self, asked: AwaitHead) -> ResponseHead:
        """Wait for a response's head. Raises what went wrong."""
        return await self._find(asked.fetch).head()

    async def write(self, asked: WriteBody) -> Done:
        """Send a piece of a request's body."""
        await self._find(asked.fetch).write(asked.data, asked.last)
        return Done()

    async def read(self, asked: ReadBody) -> BodyChunk:
        """Return the next piece of a response's body."""
        return await self._find(asked.fetch).read()

    async def close(self, asked: CloseFetch) -> Done:
        """End a fetch and forget it."""
        fetch = self._fetches.pop(asked.fetch, None)
        if fetch is not None:
            fetch.give_up()
        return Done()

    def _find(self, number: int) -> Fetch:
        fetch = self._fetches.get(number)
        if fetch is None:
            raise NotFound("there is no such request: it is over, or was given up")
        return fetch


def fetcher_launch(start: FetcherStart, *, require_all: bool = False) -> Launch:
    """Return how to start the process."""
    limits = ResourceLimits(memory_bytes=MEMORY_BYTES, open_files=FILES, threads=THREADS)
    return Launch(MODULE, ChildKind.EGRESS, settings=start, limits=limits, require_all=require_all)


def trusted_context(ca: str) -> ssl.SSLContext:
    """Return what servers are verified with: the system's certificates, and those of a file. TLS 1.2 or later."""
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if ca:
        context.load_verify_locations(cadata=ca)
    return context


async def serve_fetches(start: FetcherStart) -> None:
    """Serve the gateway until cancelled."""
    with zmq.Context() as context:
        async with anyio.create_task_group() as tasks:
            table = FetchTable(tasks, trusted_context(start.ca), Resolver())
            await EgressServer(context, start.endpoint, table.handlers()).serve()


def child_main(child: Child) -> int:
    """Fetch until the gateway ends this process. Returns the exit code."""
    start = child.settings(FetcherStart)
    child.seal()
    anyio.run(serve_fetches, start)
    return 0
