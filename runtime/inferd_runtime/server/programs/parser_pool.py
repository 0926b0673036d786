"""Parses uploads of all tenants in processes that can be killed: a few at a time, and one of each tenant at a time.

A tenant's uploads wait for each other in the tenant's own line; the first of each line waits for a process. So what one
tenant sends, however slow, takes one process of several.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import anyio.to_thread

from inferd.protocol import LimitExceeded
from inferd_runtime.server.programs.parser_messages import ParsedUpload, ParseLimits
from inferd_runtime.server.programs.parser_process import ParserProcess

PROCESSES = 4
SLOW_SECONDS = 0.1
"""How long an upload is parsed until another process is started beside it: a start takes more than most uploads do."""
MAX_LINE = 8
"""Uploads of one tenant that are read, wait, or are parsed."""


@dataclass
class _Line:
    """The uploads of one tenant. ``inside``: how many hold the line or wait for their turn."""

    turn: anyio.Lock = field(default_factory=anyio.Lock)
    inside: int = 0


class ParserPool:
    """Belongs to one event loop; the processes are waited for in threads."""

    def __init__(self, start: Callable[[], ParserProcess] = lambda: ParserProcess(ParseLimits())) -> None:
        self._start = start
        self._lines: dict[str, _Line] = {}
        self._places = anyio.CapacityLimiter(PROCESSES)
        self._threads = anyio.CapacityLimiter(PROCESSES)
        self._free: list[ParserProcess] = []
        self._busy: set[ParserProcess] = set()
        self._closed = False

    @asynccontextmanager
    async def in_line(self, tenant: str) -> AsyncIterator[None]:
        """Hold a place in a tenant's line, from before an upload is read. Raises LimitExceeded if there is none."""
        line = self._lines.setdefault(tenant, _Line())
        if line.inside >= MAX_LINE:
            raise LimitExceeded(
                f"{MAX_LINE} uploads of yours are in work already: wait for one of them", limit="waiting_uploads",
                value=MAX_LINE, raise_with="fewer uploads at a time",
            )  # fmt: skip
        async with self._inside(line, tenant):
            yield

    @asynccontextmanager
    async def turn(self, tenant: str) -> AsyncIterator[None]:
        """Wait until none of the tenant's programs is parsed, and hold that: :meth:`parse` is called in it."""
        line = self._lines.setdefault(tenant, _Line())
        async with self._inside(line, tenant), line.turn:
            yield

    async def parse(self, upload: bytes) -> ParsedUpload:
        """Return the parts of an upload's JSON. Raises what :meth:`ParserProcess.parse` raises."""
        async with self._places:
            process = self._take()
            slow = asyncio.get_running_loop().call_later(SLOW_SECONDS, self.warm_up)
            try:
                return await anyio.to_thread.run_sync(process.parse, upload, limiter=self._threads)
            finally:
                slow.cancel()
                self._give_back(process)

    @asynccontextmanager
    async def _inside(self, line: _Line, tenant: str) -> AsyncIterator[None]:
        line.inside += 1
        try:
            yield
        finally:
            line.inside -= 1
            if not line.inside:
                del self._lines[tenant]

    def warm_up(self) -> None:
        """Have a free process, where there may be one more, without waiting for its start."""
        if not self._free and len(self._busy) < PROCESSES and not self._closed:
            self._free.append(self._start())

    def close(self) -> None:
        """End all processes; uploads that are parsed fail."""
        self._closed = True
        for process in self._busy:
            process.kill()
        while self._free:
            self._free.pop().close()

    def _take(self) -> ParserProcess:
        """Return a process that is free, or a new one. Called in the event loop's thread: a child ends with the thread that
        started it, and those that wait for answers come and go.
        """
        self._free = [process for process in self._free if process.alive]
        process = self._free.pop(0) if self._free else self._start()  # the one that has rested longest
        self._busy.add(process)
        return process

    def _give_back(self, process: ParserProcess) -> None:
        self._busy.discard(process)
        if self._closed or not process.alive:
            process.close()
        else:
            self._free.append(process)
