"""Takes a connection from a socket that listens."""

from __future__ import annotations

import socket
from typing import Any

import anyio


async def accept(listener: socket.socket) -> tuple[socket.socket, Any]:
    """Return the next connection, which does not block, and its address. ``listener`` must not block either. Raises OSError.

    The event loop's own ``sock_accept`` takes a connection also when its caller was cancelled just before, and then loses it.
    """
    while True:
        try:
            accepted, address = listener.accept()
        except BlockingIOError:
            await anyio.wait_readable(listener)
        else:
            accepted.setblocking(False)
            return accepted, address
