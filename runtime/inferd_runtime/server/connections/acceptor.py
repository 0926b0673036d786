"""Accepts connections for the gateway: never more than the table allows, and whatever the system runs out of."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from inferd_runtime.accepting import accept, connect_accepted
from inferd_runtime.server.connections.connection_table import ConnectionTable
from inferd_runtime.server.connections.guarded_connection import GuardedConnection

EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
PAUSE_SECONDS = 0.1
"""How long to leave new connections waiting after the system had no room for one."""
SWEEP_SECONDS = 0.5
ACCEPTED_IN_A_ROW = 8
"""Connections that are accepted before others have their turn: a full backlog would take a tenth of a second and more."""
log = logging.getLogger("inferd.gateway")


@dataclass(frozen=True)
class Listener:
    """A socket that listens, what gives a connection its context for TLS if it is spoken, and the seconds for its handshake."""

    socket: socket.socket
    tls: Callable[[], ssl.SSLContext | None] = lambda: None
    handshake_seconds: float = 10.0


class Acceptor:
    """Has the interface of asyncio's servers, as far as uvicorn uses it: :meth:`close` and :meth:`wait_closed`."""

    def __init__(self, listener: Listener, table: ConnectionTable, inner: Callable[[], asyncio.Protocol]) -> None:
        self._listener = listener
        self._table = table
        self._inner = inner
        listener.socket.setblocking(False)
        self._accepting = asyncio.create_task(self._accept())
        self._sweeping = asyncio.create_task(self._sweep())
        self._connecting: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        """Accept nothing more. Open connections stay open, and are still given up when they are overdue."""
        self._accepting.cancel()

    async def wait_closed(self) -> None:
        """Wait until nothing is accepted or given up any more."""
        self._sweeping.cancel()
        for task in self._connecting:
            task.cancel()
        await asyncio.gather(self._accepting, self._sweeping, *self._connecting, return_exceptions=True)

    async def _accept(self) -> None:
        while True:
            for _ in range(ACCEPTED_IN_A_ROW):
                await self._accept_one()
            await asyncio.sleep(0)

    async def _accept_one(self) -> None:
        try:
            accepted, address = await accept(self._listener.socket)
        except OSError as error:
            if error.errno in EXHAUSTED:
                log.warning("a connection cannot be accepted: %s", error.strerror)
                self._table.make_room()
                await asyncio.sleep(PAUSE_SECONDS)
            return
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection = self._table.arrived((str(address[0]), int(address[1])), self._inner)
        connection.refuse = partial(_shut, accepted)
        task = asyncio.create_task(self._connect(accepted, connection))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, accepted: socket.socket, connection: GuardedConnection) -> None:
        """Make the connection's transport, with TLS where it is spoken; a handshake that fails ends this connection alone."""
        tls, seconds = self._listener.tls(), self._listener.handshake_seconds
        try:
            await connect_accepted(lambda: connection, accepted, tls, seconds)
        except OSError as error:  # SSLError and time-outs are some, too
            log.debug("no connection with %s: %s", connection.address, error)
            error.__traceback__ = (
                None  # it holds asyncio's TLS with its buffer of 256 KiB, which holds it, until a collection
            )
            self._table.ended(connection)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self._table.sweep()


def _shut(accepted: socket.socket) -> None:
    """Let a handshake fail. Closing the socket is up to the transport, which the event loop has for it already."""
    with contextlib.suppress(OSError):
        accepted.shutdown(socket.SHUT_RDWR)
