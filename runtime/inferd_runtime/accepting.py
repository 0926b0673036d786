"""Takes a connection from a socket that listens, and begins to speak over it."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
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


async def connect_accepted(
    make_protocol: Callable[[], asyncio.Protocol],
    accepted: socket.socket,
    tls: ssl.SSLContext | None,
    handshake_seconds: float,
) -> asyncio.Transport:
    """Return the transport of an accepted connection, behind its handshake where TLS is spoken. Raises OSError.

    What the event loop raises for a handshake that fails holds the connection's buffer of 256 KiB, which holds it in turn: by its
    traceback, which goes here, or only a collection of garbage would free them.
    """
    seconds = None if tls is None else handshake_seconds
    try:
        transport, _ = await asyncio.get_running_loop().connect_accepted_socket(
            make_protocol, accepted, ssl=tls, ssl_handshake_timeout=seconds
        )
    except OSError as error:
        raise error.with_traceback(None) from None
    return transport
