"""Messages of scripts as they come in pieces, without a socket."""

from __future__ import annotations

from typing import Any

import pytest
from uvicorn.config import Config
from uvicorn.server import ServerState
from websockets.frames import Frame, Opcode

from inferd_runtime.server.gateway.socket_protocol import BinarySocket

PIECES = 10_000


class StillTransport:
    """A transport that may be told not to read."""

    def pause_reading(self) -> None:
        """Do nothing."""


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Never called here."""


@pytest.mark.parametrize("first", [b"", b"ab"], ids=["empty", "full"])
async def test_small_pieces_of_a_message_take_no_more_than_their_bytes(first: bytes) -> None:
    """Kept apart, pieces of two bytes took 56 each: the 32 MiB that a tenant may send unread were 180 of the gateway."""
    socket = BinarySocket(Config(application, log_config=None, lifespan="off"), ServerState(), {})
    socket.transport = StillTransport()  # type: ignore[assignment]
    for _ in range(2):
        socket.handle_bytes(Frame(Opcode.BINARY, first, fin=False))
        for _ in range(PIECES):
            socket.handle_cont(Frame(Opcode.CONT, b"cd", fin=False))
            assert len(socket.frames) == 1
        socket.handle_cont(Frame(Opcode.CONT, b"e", fin=True))
        assert socket.queue.get_nowait() == {"type": "websocket.receive", "bytes": first + b"cd" * PIECES + b"e"}
        assert not socket.pieces
