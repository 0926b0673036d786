"""One connection as the gateway sees it: between a transport and the HTTP server's protocol.

The HTTP server parses and answers. What it does not do is here, for HTTP, WebSocket and TLS alike: time-outs for everything that
a client may leave unfinished, reading that stops while the client does not read, and a bound on the time that parsing takes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Protocol, cast

from inferd_runtime.server.connections.deadlines import Deadlines
from inferd_runtime.server.connections.parse_lines import FEED_SECONDS

UNREAD = "unread output"
SERVER = "the HTTP server"
PARSING = "parsing"
"""Reasons for not reading."""
PIECE_BYTES = 4096
"""What is parsed at a time: a few milliseconds' worth of the smallest WebSocket frames."""
LEAST_PIECE_BYTES = 512
"""Pieces begin as small: a chunk of a byte takes ten times as long as such a frame. They grow while they take less than
PIECE_SECONDS, and shrink again.
"""
PIECE_SECONDS = 0.001
HEAD_END = b"\r\n\r\n"
JOINED_BYTES = 16 << 10
"""Of an answer's head and body that are sent together; more is sent at once, so that what the client does not read is seen."""
HANDED_BYTES = 64 << 10
"""What a transport gets at a time, until it has too much. What it holds beyond that is not told where it speaks TLS."""


Peer = tuple[str, int]
"""A client's address and port."""


class ConnectionKeeper(Protocol):
    """What a connection belongs to."""

    def line_up(self, connection: GuardedConnection) -> None:
        """Call the connection's ``parse``, and its ``parsed`` behind it, when it is its turn."""

    def received(self, connection: GuardedConnection, size: int) -> None:
        """Count bytes of a WebSocket's message that is not complete; too many end the connection."""

    def stalled(self, connection: GuardedConnection, size: int) -> None:
        """Count bytes that the client has yet to read; too many end the connection."""

    def flows(self, connection: GuardedConnection) -> None:
        """Note that the client has read nearly all of them."""

    def ended(self, connection: GuardedConnection) -> None:
        """Forget the connection."""


class GuardedConnection(asyncio.Protocol):
    """Passes on what its transport says to ``inner``, a protocol of the HTTP server."""

    def __init__(
        self, peer: Peer, make_inner: Callable[[], asyncio.Protocol], deadlines: Deadlines, keeper: ConnectionKeeper
    ) -> None:
        self.peer = peer
        self.deadlines = deadlines
        self.tenant: str | None = None
        self.is_websocket = False
        self.is_new = True
        """Whether nothing of it has been parsed."""
        self.requests = 0
        """Of it that are being read or answered."""
        self.lost = asyncio.Event()
        self.held_bytes = 0
        """Bytes that were taken from what the tenants share, for a WebSocket's message that is not complete."""
        self.message_bytes = 0
        """Bytes that came since the last complete message."""
        self.unread_bytes = 0
        """Bytes of answers that were taken from what the tenants share, until the client reads them."""
        self.allowed: Callable[[], bool] = lambda: True
        """Whether what it was opened with still opens anything."""
        self.refuse: Callable[[], None] = lambda: None
        """Ends the connection while there is no transport yet."""
        self.inner: asyncio.Protocol = asyncio.Protocol()
        self._make_inner = make_inner
        self._keeper = keeper
        self._transport: asyncio.Transport | None = None
        self._pending = bytearray()
        self._unsent = bytearray()
        self._full = False
        self._last_act: Callable[[], None] | None = None
        self._piece_bytes = LEAST_PIECE_BYTES
        self._in_line = False
        self._paused: set[str] = set()

    @property
    def address(self) -> str:
        """The client's address."""
        return self.peer[0]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Hand the connection to the HTTP server."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(HANDED_BYTES)
        self.inner = self._make_inner()
        self.inner.connection_made(GuardedTransport(self, self._transport))

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the HTTP server and the keeper."""
        self._pending.clear()
        self._unsent.clear()
        self._last_act = None
        self._keeper.ended(self)
        lost, self.inner = self.inner, asyncio.Protocol()  # or only a collection of garbage would free the two
        lost.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Queue bytes for the HTTP server, and parse what is due."""
        self.deadlines.received(time.monotonic())
        if self.is_websocket:
            self._keeper.received(self, len(data))
        self._pending += data
        self._line_up()

    def eof_received(self) -> bool | None:
        """Pass it on; where the HTTP server has an answer to send, leave our side open (which TLS cannot)."""
        if self._transport is None or self._transport.get_extra_info("sslcontext") is not None:
            return False
        stays_open = self.inner.eof_received()
        if stays_open:
            self.deadlines.half_closed(time.monotonic())
        return stays_open

    def pause_writing(self) -> None:
        """The client does not read: it is not read either, and its time runs."""
        self._full = True
        self.deadlines.stalled(time.monotonic())
        if not self.is_paused(UNREAD):
            self.pause(UNREAD)
            self.inner.pause_writing()
        self._keeper.stalled(self, self.unsent_bytes())

    def resume_writing(self) -> None:
        """The client reads again: it gets what waited for that, and the HTTP server goes on once it has all of it."""
        self._full = False
        self.deadlines.flows()
        self._keeper.flows(self)
        self.hand_over()
        if not self._full:
            self.inner.resume_writing()
            self.resume(UNREAD)

    def unsent_bytes(self) -> int:
        """Return how many bytes wait to be sent, here and in the transport."""
        return len(self._unsent) + (0 if self._transport is None else self._transport.get_write_buffer_size())

    def send(self, data: bytes | bytearray | memoryview) -> None:
        """Send together what is written in one turn of the event loop: each piece alone would cost system calls on both sides."""
        if self._transport is None or self._transport.is_closing() or self._last_act is not None:
            return
        if data and not self._unsent:
            asyncio.get_running_loop().call_soon(self.hand_over)
        self._unsent += data
        if len(self._unsent) >= JOINED_BYTES:
            self.hand_over()

    def hand_over(self) -> None:
        """Give the transport what waits to be sent, in pieces, until it has too much; then do what was to be done behind it."""
        if self._transport is None or self._transport.is_closing():
            return
        while self._unsent and not self._full:
            piece = bytes(self._unsent[:HANDED_BYTES])
            del self._unsent[:HANDED_BYTES]
            self._transport.write(piece)
            self.deadlines.wrote(time.monotonic())
        if not self._unsent and self._last_act is not None:
            act, self._last_act = self._last_act, None
            act()

    def finish(self, act: Callable[[], None]) -> None:
        """Do this, which ends what is sent, once the transport has all that waits to be sent.

        A transport that is closed already is left alone: asyncio's own for TLS, closed twice, raises whatever it is asked.
        """
        if self._transport is not None and not self._transport.is_closing():
            self._last_act = act
            self.hand_over()

    def is_ending(self) -> bool:
        """Return True if nothing more is to be sent behind what waits."""
        return self._last_act is not None

    def is_paused(self, why: str) -> bool:
        """Return True if there is this reason for not reading."""
        return why in self._paused

    def pause(self, why: str) -> None:
        """Stop reading, until every reason to is gone."""
        self._paused.add(why)
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self, why: str) -> None:
        """Take back one reason for not reading."""
        if why not in self._paused:
            return
        self._paused.discard(why)
        if self._pending or PARSING in self._paused:
            self._line_up()
        self._read_if_possible()

    def abort(self) -> None:
        """Close at once; what is still to be sent is lost."""
        if self._transport is not None:
            self._transport.abort()
        else:
            self.refuse()

    def close_with(self, farewell: bytes) -> None:
        """Say something last, then close."""
        self.deadlines.closing(time.monotonic())
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(farewell)
            self._transport.close()

    def parse(self) -> float:
        """Parse pieces until none is left, reading has to stop, or others must have their turn. Returns the processor time.

        Of a new connection it is one piece, which ends with the head: who sends the rest is known behind that.
        """
        started = now = time.thread_time()  # not the clock's: what else the machine runs is not this owner's doing
        while self._pending and not self._paused - {PARSING} and now - started < FEED_SECONDS:
            self._parse_piece(self._first_piece_bytes() if self.is_new else self._piece_bytes)
            before, now = now, time.thread_time()
            grown = self._piece_bytes * 2 if now - before < PIECE_SECONDS else self._piece_bytes // 2
            self._piece_bytes = min(max(grown, LEAST_PIECE_BYTES), PIECE_BYTES)
            if self._transport is None or self._transport.is_closing():
                self._pending.clear()  # as with asyncio's own transports: a closed connection gets no more data
            if self.is_new:
                break
        self.is_new = False
        return now - started

    def parsed(self, wait: float) -> None:
        """Read on, or stand in line again: with bytes that are left, or until the owner may send more, in ``wait`` seconds."""
        self._in_line = False
        if self._pending or wait:
            self.pause(PARSING)
            self._line_up()
        else:
            self._paused.discard(PARSING)
        self._read_if_possible()

    def _line_up(self) -> None:
        """Stand in line, unless it is for something else that nothing is parsed; nothing is read meanwhile."""
        if self._in_line or self._paused - {PARSING} or self.lost.is_set():
            return
        self._in_line = True
        self._keeper.line_up(self)
        if self._in_line:
            self.pause(PARSING)

    def _first_piece_bytes(self) -> int:
        end = self._pending.find(HEAD_END, 0, PIECE_BYTES)
        return PIECE_BYTES if end < 0 else end + len(HEAD_END)

    def _parse_piece(self, size: int) -> None:
        piece = bytes(self._pending[:size])
        del self._pending[:size]
        try:
            self.inner.data_received(piece)
        except AssertionError:  # uvicorn's, for what is no WebSocket frame: asyncio would log a traceback for each
            self.abort()

    def _read_if_possible(self) -> None:
        if not self._paused and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()


class GuardedTransport(asyncio.Transport):
    """The transport as the HTTP server's protocol sees it. That protocol may hand it to another one, of WebSockets."""

    def __init__(self, connection: GuardedConnection, transport: asyncio.Transport) -> None:
        super().__init__()
        self._connection = connection
        self._transport = transport

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what the transport knows."""
        return self._transport.get_extra_info(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Hand the connection to another protocol of the HTTP server."""
        self._connection.inner = cast(asyncio.Protocol, protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol of the HTTP server."""
        return self._connection.inner

    def is_closing(self) -> bool:
        """Return True once it is closed or about to be."""
        return self._connection.is_ending() or self._transport.is_closing()

    def close(self) -> None:
        """Close when all is sent."""
        self._connection.finish(self._transport.close)

    def abort(self) -> None:
        """Close now."""
        self._transport.abort()

    def is_reading(self) -> bool:
        """Return True unless the HTTP server has asked not to read."""
        return not self._connection.is_paused(SERVER)

    def pause_reading(self) -> None:
        """Read nothing for the HTTP server."""
        self._connection.pause(SERVER)

    def resume_reading(self) -> None:
        """Read on for the HTTP server."""
        self._connection.resume(SERVER)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes when the client reads them."""
        self._connection.send(data)

    def get_write_buffer_size(self) -> int:
        """Return the bytes that are not sent yet."""
        return self._connection.unsent_bytes()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set when the HTTP server is told to stop writing."""
        self._transport.set_write_buffer_limits(high, low)

    def can_write_eof(self) -> bool:
        """Return what the transport says."""
        return self._transport.can_write_eof()

    def write_eof(self) -> None:
        """Close the sending side when all is sent."""
        self._connection.finish(self._transport.write_eof)
