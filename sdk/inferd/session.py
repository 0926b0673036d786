"""Messages between a program and its launcher."""

from __future__ import annotations

from typing import Any

from inferd.program.json_values import to_json_value
from inferd.protocol import ReceiveMessage, SendMessage
from inferd.transport import current_transport


async def send(value: Any) -> None:
    """Send a value to the launcher of this program.

    Dataclasses, enums and pydantic models are turned into plain JSON values first. Raises ProgramError, which names the
    place, for a value that JSON cannot hold.
    """
    await current_transport().call(SendMessage(to_json_value(value, "message")))


async def receive() -> Any:
    """Return the next JSON value from the launcher of this program, once it comes. Messages come in order, each once."""
    return (await current_transport().call(ReceiveMessage())).message
