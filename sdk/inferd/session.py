"""Messages between a program and its launcher."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from inferd.program.json_values import to_json_value
from inferd.protocol import EndOfMessages, ReceiveMessage, SendMessage
from inferd.transport import current_transport


async def send(value: Any) -> None:
    """Send a value to the launcher of this program.

    Dataclasses, enums and pydantic models are turned into plain JSON values first. Raises ProgramError, which names the
    place, for a value that JSON cannot hold.
    """
    await current_transport().call(SendMessage(to_json_value(value, "message")))


async def receive() -> Any:
    """Return the next JSON value from the launcher of this program, once it comes. Messages come in order, each once.

    Raises EndOfMessages once the launcher has said that it sends no more.
    """
    return (await current_transport().call(ReceiveMessage())).message


async def messages() -> AsyncIterator[Any]:
    """Yield the messages of the launcher until it sends no more."""
    while True:
        try:
            message = await receive()
        except EndOfMessages:
            return
        yield message
