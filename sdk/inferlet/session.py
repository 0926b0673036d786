"""Messages and files between a program and its launcher."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from inferd import session
from inferd.program.json_values import to_json_value
from inferd.protocol import SendMessage
from inferd.protocol.files import ANY_TYPE, MAX_PIECE, BeginFile, WriteFile, check_file
from inferd.transport import current_port
from inferlet.blocking import call


def send(msg: Any) -> None:
    """Send a message. It is text in Pie; any other JSON value is sent as it is."""
    call(current_port(), SendMessage(to_json_value(msg, "message")))


async def receive() -> str:
    """Return the next message, once it comes. What is no text becomes JSON text."""
    message = await session.receive()
    return message if isinstance(message, str) else json.dumps(message)


def send_file(data: bytes) -> None:
    """Send a file. Pie's have no names: it gets the beginning of its SHA-256. Raises what ``inferd.session.send_file`` does."""
    port, name = current_port(), f"{hashlib.sha256(data).hexdigest()[:12]}.bin"
    check_file(name, ANY_TYPE, len(data))
    number = call(port, BeginFile(name, ANY_TYPE, len(data))).file
    for start in range(0, max(1, len(data)), MAX_PIECE):
        call(port, WriteFile(number, start, data[start : start + MAX_PIECE]))


async def receive_file() -> bytes:
    """Return the next file, once it is there whole."""
    return await (await session.receive_file()).read()
