"""Messages and files between a program and its launcher."""

from __future__ import annotations

import json
from typing import Any

from inferd import session
from inferd.program.json_values import to_json_value
from inferd.protocol import SendMessage
from inferd.transport import current_port
from inferlet.blocking import call
from inferlet.refused import refuse


def send(msg: Any) -> None:
    """Send a message. It is text in Pie; any other JSON value is sent as it is."""
    call(current_port(), SendMessage(to_json_value(msg, "message")))


async def receive() -> str:
    """Return the next message, once it comes. What is no text becomes JSON text."""
    message = await session.receive()
    return message if isinstance(message, str) else json.dumps(message)


def send_file(data: bytes) -> None:
    """Send a file. Refused by name where the runtime has no files."""
    refuse("session.send_file", "this runtime carries messages only: send text, such as Base64")


async def receive_file() -> bytes:
    """Return the next file, once it comes. Refused by name where the runtime has no files."""
    refuse("session.receive_file", "this runtime carries messages only: receive text, such as Base64")
