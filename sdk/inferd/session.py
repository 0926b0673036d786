"""Messages and files between a program and its launcher."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path, PurePath
from typing import Any

from inferd import files
from inferd.program.json_values import to_json_value
from inferd.protocol import EndOfMessages, ReceiveMessage, SendMessage
from inferd.protocol.files import ANY_TYPE, MAX_PIECE, BeginFile, FileHead, ReadFile, ReceiveFile, WriteFile, check_file
from inferd.transport import Transport, current_transport


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


async def send_file(content: bytes | str | PurePath, name: str = "", media_type: str = ANY_TYPE) -> None:
    """Send a file to the launcher of this program: bytes with a ``name``, or the path of one of the program's own files, or of
    one that the run has written, such as /tmp/report.pdf.

    It goes in pieces, and is there for the launcher once this returns. Raises InvalidRequest for a name or media type that is
    none, LimitExceeded for a file that is too large (64 MiB) or too much for the run, and Unavailable where it cannot be kept.
    """
    data = content if isinstance(content, bytes) else _read(content)
    name = name or ("" if isinstance(content, bytes) else PurePath(content).name)
    check_file(name, media_type, len(data))
    transport = current_transport()
    number = (await transport.call(BeginFile(name, media_type, len(data)))).file
    for start in range(0, max(1, len(data)), MAX_PIECE):
        await transport.call(WriteFile(number, start, data[start : start + MAX_PIECE]))


def _read(path: str | PurePath) -> bytes:
    """Return the bytes of one of the program's own files, or of any file by its absolute path. Raises FileNotFoundError."""
    return Path(path).read_bytes() if PurePath(path).is_absolute() else files.read_bytes(str(path))


class ReceivedFile:
    """A file of the launcher's, by :func:`receive_file`. Its bytes are fetched when they are asked for, as often as they are."""

    def __init__(self, transport: Transport, head: FileHead) -> None:
        self.name = head.name
        self.media_type = head.media_type
        self.size = head.size
        self.sha256 = head.sha256
        self._transport = transport
        self._number = head.file

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield the bytes in pieces."""
        offset = 0
        while True:
            piece = await self._transport.call(ReadFile(self._number, offset))
            offset += len(piece.data)
            yield piece.data
            if piece.last:
                return

    async def read(self) -> bytes:
        """Return all bytes, which count as the program's memory."""
        return b"".join([piece async for piece in self.stream()])


async def receive_file() -> ReceivedFile:
    """Return the next file from the launcher of this program, once it is there whole. Files come in order, each once.

    Raises EndOfMessages once the launcher has said that it sends no more.
    """
    transport = current_transport()
    return ReceivedFile(transport, await transport.call(ReceiveFile()))
