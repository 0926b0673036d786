"""All connections of the gateway: who they belong to, when they are given up, and how many there may be."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from inferd.protocol import LimitExceeded, Unavailable
from inferd_runtime.server.connections.deadlines import Deadlines, Patience
from inferd_runtime.server.connections.guarded_connection import GuardedConnection, Peer
from inferd_runtime.server.connections.loop_shares import REGULAR_MOST_SECONDS, REGULAR_SHARE, AnswerShares, LoopTurns
from inferd_runtime.server.connections.parse_lines import ParseAccount, ParseLines
from inferd_runtime.server.connections.unauthenticated import UnauthenticatedConnections
from inferd_runtime.server.tenancy.tenant_use import TenantUse

POLICY_VIOLATION, TRY_AGAIN_LATER = 1008, 1013
"""Close codes of WebSockets (https://www.iana.org/assignments/websocket)."""
RECHECK_SECONDS = 2.0
"""How often it is looked whether the tokens of open connections are still valid."""
MAX_REASON = 120
HELD_STEP = 64 << 10
"""Bytes that are counted at a time for a message that is not complete."""
MESSAGE_BYTE_SECONDS = 8e-9
"""What a byte of a WebSocket's message takes in the engine process: a MiB of numbers is read in 8 ms."""


log = logging.getLogger("inferd.connections")


def close_frame(code: int, reason: str) -> bytes:
    """Return a WebSocket's close frame (RFC 6455, 5.5.1), unmasked, as a server sends it."""
    payload = code.to_bytes(2, "big") + reason.encode()[:MAX_REASON].decode(errors="ignore").encode()
    return bytes([0x88, len(payload)]) + payload


def timeout_answer(reason: str) -> bytes:
    """Return what a client is told that took too long over its request."""
    error = Unavailable(f"the connection is closed: {reason}")
    body = msgspec.json.encode({"error": error.to_wire()})
    head = f"HTTP/1.1 408 Request Timeout\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
    return head.encode() + b"connection: close\r\n\r\n" + body


@dataclass(frozen=True)
class TableLimits:
    """``unauthenticated``: connections without a token that may be open, ``per_address`` of them from one address."""

    patience: Patience = field(default_factory=Patience)
    unauthenticated: int = 512
    per_address: int = 256


class ConnectionTable:
    """Belongs to the event loop; :meth:`sweep` has to be called about once a second."""

    def __init__(self, use: TenantUse, limits: TableLimits | None = None) -> None:
        self.limits = limits or TableLimits()
        self._use = use
        self._unauthenticated = UnauthenticatedConnections(self.limits.unauthenticated, self.limits.per_address)
        self._lines = ParseLines()
        self._answers = AnswerShares()
        self._turns = LoopTurns()
        self._recheck_at = 0.0
        self._open: dict[Peer, GuardedConnection] = {}

    @property
    def count(self) -> int:
        """How many connections are open."""
        return len(self._open)

    def arrived(self, peer: Peer, make_inner: Callable[[], asyncio.Protocol]) -> GuardedConnection:
        """Return the protocol of a new connection; another one that has shown no token may have to go for it."""
        if peer in self._open:
            # Its client has gone, which is not seen while nothing is read; and only connections of the table are swept.
            self._open[peer].abort()
        deadlines = Deadlines(self.limits.patience, time.monotonic())
        connection = GuardedConnection(peer, make_inner, deadlines, self)
        for old in self._unauthenticated.arrive(connection.address, connection):
            assert isinstance(old, GuardedConnection)
            old.abort()
        self._open[peer] = connection
        return connection

    def make_room(self) -> None:
        """Close an unauthenticated connection, because the system has no file left for a new one."""
        old = self._unauthenticated.dismiss_one()
        if isinstance(old, GuardedConnection):
            old.abort()

    def find(self, peer: Peer | None) -> GuardedConnection | None:
        """Return the open connection of a client's address and port."""
        return None if peer is None else self._open.get((peer[0], peer[1]))

    def head_came(self, connection: GuardedConnection, has_body: bool) -> None:
        """Note that a request's head is complete."""
        connection.requests += 1
        connection.deadlines.head_came(time.monotonic(), has_body)
        self._unauthenticated.heard(connection.address, connection)

    def request_over(self, connection: GuardedConnection) -> None:
        """Note that nothing is done for a request any more. A client that did not wait may have sent the next one."""
        connection.requests -= 1
        if not connection.requests:
            connection.deadlines.answered(time.monotonic())
            if connection.lost.is_set():
                self._leave_owner(connection)

    def belongs_to(self, connection: GuardedConnection, tenant: str) -> None:
        """Note that a connection has shown a tenant's token. Raises LimitExceeded if the tenant has too many already."""
        if connection.tenant == tenant:
            return
        self._use.add_connection(tenant)
        self._leave_owner(connection)
        connection.tenant = tenant

    def received(self, connection: GuardedConnection, size: int) -> None:
        """Count bytes of a WebSocket's message that is not complete; more than the tenants have room for end the connection."""
        connection.message_bytes += size
        try:
            while connection.message_bytes > connection.held_bytes and connection.tenant is not None:
                self._use.bodies.take(connection.tenant, HELD_STEP)
                connection.held_bytes += HELD_STEP
        except LimitExceeded as error:
            connection.close_with(close_frame(TRY_AGAIN_LATER, error.message))

    def message_came(self, connection: GuardedConnection) -> None:
        """Note that a WebSocket's message was complete and is the application's now."""
        connection.message_bytes = 0
        if connection.held_bytes and connection.tenant is not None:
            self._use.bodies.give_back(connection.tenant, connection.held_bytes)
        connection.held_bytes = 0

    def stalled(self, connection: GuardedConnection, size: int) -> None:
        """Count bytes that a client has yet to read; more than the tenants have room for end the connection."""
        if connection.tenant is None:
            return
        try:
            self._use.unread.take(connection.tenant, size)
            connection.unread_bytes += size
        except LimitExceeded as error:
            log.info("closing the connection of %s: %s", connection.address, error.message)
            connection.abort()

    def flows(self, connection: GuardedConnection) -> None:
        """Note that a client has read nearly all of them."""
        if connection.unread_bytes and connection.tenant is not None:
            self._use.unread.give_back(connection.tenant, connection.unread_bytes)
        connection.unread_bytes = 0

    def line_up(self, connection: GuardedConnection) -> None:
        """Have a connection parse when it is its owner's turn. The first bytes of all do not wait for what came before."""
        if connection.is_new:
            account = ParseAccount(f"new ones of {connection.address}")
        elif self._unauthenticated.is_regular(connection.address, connection):
            account = ParseAccount(f"connection {connection.peer}", REGULAR_SHARE, REGULAR_MOST_SECONDS)
        else:
            account = ParseAccount(_owner(connection))
        self._lines.join(connection, account)

    def begin_answer(self, connection: GuardedConnection) -> float:
        """Return the seconds to wait before a request is answered: others have their share of the thread."""
        if self._unauthenticated.is_regular(connection.address, connection):
            return 0.0
        return self._answers.begin(_owner(connection), time.monotonic())

    def begin_message(self, connection: GuardedConnection, size: int) -> float:
        """Return the seconds to wait before a WebSocket's message goes on: reading it behind this process takes time as well."""
        return self._answers.begin(_owner(connection), time.monotonic(), size * MESSAGE_BYTE_SECONDS)

    def answering(self, connection: GuardedConnection, seconds: float) -> None:
        """Charge the time that answering took until now."""
        if not self._unauthenticated.is_regular(connection.address, connection):
            self._answers.used(_owner(connection), seconds, time.monotonic())
            self._turns.used(_owner(connection), seconds)

    async def turn(self, connection: GuardedConnection) -> None:
        """Wait until the next part of an answer may be written, or the next message handled."""
        await self._turns.turn(_owner(connection))

    def answered(self, status: int) -> None:
        """Count an answer."""
        self._use.answers[status] += 1

    def ended(self, connection: GuardedConnection) -> None:
        """Forget a connection that was lost. It counts until its request is over: else clients that leave could have any number
        of requests wait.
        """
        if self._open.get(connection.peer) is connection:
            del self._open[connection.peer]
        connection.lost.set()
        if connection.tenant is None or not connection.requests:
            self._leave_owner(connection)

    def sweep(self) -> None:
        """Close what is overdue."""
        now = time.monotonic()
        for connection in [one for one in self._open.values() if one.deadlines.due <= now]:
            log.info("closing the connection of %s: %s", connection.address, connection.deadlines.reason)
            if connection.deadlines.may_be_told and not connection.is_websocket:
                connection.close_with(timeout_answer(connection.deadlines.reason))
            else:
                connection.abort()
        if now >= self._recheck_at:
            self._recheck_at = now + RECHECK_SECONDS
            self._close_disallowed()
        self._lines.forget_old(now)
        self._answers.forget_old(now)

    def _close_disallowed(self) -> None:
        """Close the connections, with their streams and sessions, whose token was revoked or has expired."""
        for connection in [one for one in self._open.values() if not one.allowed()]:
            if connection.is_websocket:
                connection.close_with(close_frame(POLICY_VIOLATION, "the token is not valid any more"))
            else:
                connection.abort()

    def _leave_owner(self, connection: GuardedConnection) -> None:
        self.message_came(connection)
        self.flows(connection)
        if connection.tenant is None:
            self._unauthenticated.leave(connection.address, connection)
        else:
            self._use.connections.give_back(connection.tenant)
            connection.tenant = None


def _owner(connection: GuardedConnection) -> str:
    """Return the name under which a connection's time is charged: its tenant, else its address."""
    return connection.tenant or f"address {connection.address}"
