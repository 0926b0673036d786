"""Frames over asyncio's streams, for both ends."""

from __future__ import annotations

import asyncio
import socket

from inferd_runtime.draft_models.remote.frames import Frame, FrameReader, FrameWriter, Kind

READ_BYTES = 64 << 10
KEEP_ALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
"""Seconds, seconds and a number; what a system does not have is left to it."""


class ConnectionEnded(Exception):
    """The other side has closed the connection, or has been silent for too long."""


class FrameStream:
    """One connection's frames. ``reader`` and ``writer`` of frames are re-keyed by the owner of the hand-shake."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.incoming = FrameReader()
        self.outgoing = FrameWriter()
        self._reader = reader
        self._writer = writer
        self._transport = writer.transport
        _tune(writer)

    async def receive(self) -> Frame:
        """Return the next frame, which is not looked for before all else that is ready has had its turn: thousands may be there.

        Cancelling loses nothing. Raises ConnectionEnded, MalformedFrame or OSError.
        """
        await asyncio.sleep(0)
        while (frame := self.incoming.next()) is None:
            data = await self._reader.read(READ_BYTES)
            if not data:
                raise ConnectionEnded("the other side has closed the connection")
            self.incoming.feed(data)
        return frame

    def send(self, kind: Kind, payload: bytes = b"", ticket: int = 0) -> None:
        """Send a frame, or keep it until the other side reads. Nothing is sent on a connection that is closing."""
        if not self._transport.is_closing():
            self._writer.write(self.outgoing.write(kind, payload, ticket))

    @property
    def unsent(self) -> int:
        """Bytes that the other side has not read yet, beyond what the system keeps."""
        return self._transport.get_write_buffer_size()

    async def finish(self) -> None:
        """Wait until all is sent, and close the connection in order. Raises OSError."""
        await self._writer.drain()
        self._writer.close()
        await self._writer.wait_closed()

    def abort(self) -> None:
        """Close the connection at once."""
        self._transport.abort()


def _tune(writer: asyncio.StreamWriter) -> None:
    """Have the system send at once, and notice a peer that has vanished without a word."""
    connection = writer.get_extra_info("socket")
    if connection is None:
        return
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEP_ALIVE.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
