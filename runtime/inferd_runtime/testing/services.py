"""The gateway's operations without processes: families of a table, and programs that call them in this event loop."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio
import msgspec

from inferd.protocol import GATEWAY_OPERATIONS, ErrorInfo, reply_from_plain
from inferd.transport import transport_in_force
from inferd_runtime.server.services.caller import Caller
from inferd_runtime.server.services.table import Answer, ServiceFamily, ServiceTable
from inferd_runtime.server.services.wires import JSON_WIRE


class ServiceTransport:
    """A transport to a table of this event loop; requests and replies cross it as JSON, as they do from the sandbox."""

    def __init__(self, table: ServiceTable, caller: Caller) -> None:
        self.caller = caller
        self.desk = table.open_desk(caller, JSON_WIRE, self._answered)
        self._tickets = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Answer]] = {}

    async def call(self, request: Any) -> Any:
        """Ask, and return the reply. Raises the InferdError that was answered."""
        assert GATEWAY_OPERATIONS[request.op] is type(request)
        ticket = next(self._tickets)
        self._waiting[ticket] = future = asyncio.get_running_loop().create_future()
        self.desk.ask(ticket, request.op, msgspec.json.encode(request))
        try:
            answer = await future
        except asyncio.CancelledError:
            self.desk.withdraw(ticket)
            raise
        finally:
            del self._waiting[ticket]
        self.desk.received(ticket)
        if not answer.ok:
            raise msgspec.json.decode(answer.payload, type=ErrorInfo).to_exception()
        return reply_from_plain(request.reply, msgspec.json.decode(answer.payload))

    def _answered(self, answer: Answer) -> None:
        self.desk.sent(answer.ticket)
        future = self._waiting.get(answer.ticket)
        if future is not None and not future.done():
            future.set_result(answer)


@asynccontextmanager
async def service_table(*families: ServiceFamily) -> AsyncIterator[ServiceTable]:
    """Serve families while the body runs."""
    async with anyio.create_task_group() as tasks:
        table = ServiceTable(tasks)
        for family in families:
            table.join(family)
        yield table
        tasks.cancel_scope.cancel()


@contextmanager
def calling(table: ServiceTable, tenant: str = "ann", name: str = "run-1") -> Iterator[ServiceTransport]:
    """Be a run of a tenant in the body: the SDK's calls go to the table."""
    transport = ServiceTransport(table, Caller(tenant, name))
    try:
        with transport_in_force(transport):
            yield transport
    finally:
        transport.desk.close()
