"""The bytes between an MCP client and a server that may send too much: bounded lines, bounded amounts per minute."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import anyio
import anyio.abc
import mcp_types
from mcp.shared.message import SessionMessage

from inferd.protocol import InferdError, LimitExceeded, Unavailable
from inferd_runtime.json_cost import containers
from inferd_runtime.log_lines import printable
from inferd_runtime.server.tenancy.rates import MinuteBucket

MAX_MESSAGE_BYTES = 4 << 20
MAX_MESSAGE_CONTAINERS = 100_000
"""Lists and objects in a message: each of those that do not fit takes the reader a kilobyte to say so."""
MESSAGES_PER_MINUTE = 6000
BYTES_PER_MINUTE = 256 << 20
READ_BYTES = 64 << 10
MAX_PRINTED = 4096
"""Bytes of what a server printed last on standard error."""
Incoming = SessionMessage | Exception


class IncomingMeter:
    """Counts what a server sends. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._messages = MinuteBucket()
        self._bytes = MinuteBucket()

    def count(self, size: int, now: float, messages: float = 1) -> None:
        """Note a message. Raises LimitExceeded if the server sends too many, or too much."""
        for bucket, most, amount, name in (
            (self._messages, MESSAGES_PER_MINUTE, messages, "messages"),
            (self._bytes, BYTES_PER_MINUTE, size, "bytes"),
        ):
            bucket.charge(most, now, amount)
            if bucket.used(most, now) > most:
                raise LimitExceeded(
                    f"the server of tools sends more than {most} {name} a minute", limit=f"mcp_{name}", value=most
                )


class ContainerMeter:
    """Counts the lists and objects of a message that comes in pieces. Pure state."""

    def __init__(self) -> None:
        self._count = 0

    def feed(self, piece: bytes) -> None:
        """Note a piece. Raises LimitExceeded for a message with too many."""
        self._count += containers(piece)
        if self._count > MAX_MESSAGE_CONTAINERS:
            raise LimitExceeded(
                f"the server of tools sends a message with more than {MAX_MESSAGE_CONTAINERS} lists and objects",
                limit="mcp_message_containers", value=MAX_MESSAGE_CONTAINERS,
            )  # fmt: skip

    def feed_events(self, piece: bytes) -> None:
        """Note a piece of a stream of events, each of which a blank line ends."""
        end = max(piece.rfind(b"\n\n"), piece.rfind(b"\n\r\n"))
        if end >= 0:
            self.feed(piece[:end])
            self._count, piece = 0, piece[end:]
        self.feed(piece)


class LineBuffer:
    """Cuts a stream of bytes into lines. Pure state."""

    def __init__(self, most: int = MAX_MESSAGE_BYTES) -> None:
        self._most = most
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that the data completes. Raises LimitExceeded for a line that is too long."""
        *whole, rest = data.split(b"\n")
        lines: list[bytes] = []
        for line in whole:
            self._add(line)
            lines.append(b"".join(self._parts))
            self._parts, self._size = [], 0
        self._add(rest)
        return [line for line in lines if line.strip()]

    def _add(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > self._most:
            raise LimitExceeded(
                f"the server of tools sends a message of more than {self._most} bytes",
                limit="mcp_message_bytes", value=self._most,
            )  # fmt: skip
        if part:
            self._parts.append(part)


class StdioServer:
    """A server of tools that is a command: its process, and messages as lines on its standard input and output."""

    def __init__(self, process: anyio.abc.Process) -> None:
        self._process = process
        self._to_client, self.incoming = anyio.create_memory_object_stream[Incoming](0)
        self.outgoing, self._from_client = anyio.create_memory_object_stream[SessionMessage](0)
        self._printed = b""

    async def run(self) -> None:
        """Carry messages until the server ends. Raises Unavailable then, and LimitExceeded if it sends too much."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._write)
                tasks.start_soon(self._listen_to_errors)
                await self._read()
                tasks.cancel_scope.cancel()
        except* InferdError as group:
            raise group.exceptions[0] from None
        with anyio.move_on_after(1):
            await self._process.wait()
        # For the operator's log alone: what a server prints may hold its own secrets.
        print(printable(self._printed.decode(errors="replace").strip()), file=sys.stderr, flush=True)
        raise Unavailable(f"the server of tools ended with code {self._process.returncode}")

    async def close(self) -> None:
        """End the process."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.aclose()
        for stream in (self._to_client, self.incoming, self.outgoing, self._from_client):
            stream.close()

    async def _read(self) -> None:
        assert self._process.stdout is not None
        lines, meter = LineBuffer(), IncomingMeter()
        with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            while True:
                for line in lines.feed(await self._process.stdout.receive(READ_BYTES)):
                    meter.count(len(line), time.monotonic())
                    ContainerMeter().feed(line)
                    await self._to_client.send(parsed_message(line))

    async def _write(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            while True:
                message = (await self._from_client.receive()).message
                text = message.model_dump_json(by_alias=True, exclude_unset=True)
                await self._process.stdin.send(text.encode() + b"\n")

    async def _listen_to_errors(self) -> None:
        assert self._process.stderr is not None
        with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            while True:
                self._printed = (self._printed + await self._process.stderr.receive(READ_BYTES))[-MAX_PRINTED:]


@asynccontextmanager
async def stdio_server(command: Sequence[str], environment: dict[str, str]) -> AsyncIterator[StdioServer]:
    """Start a command and kill it at the end. Raises Unavailable if it cannot be started."""
    try:
        process = await anyio.open_process(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            cwd=os.getcwd(),
        )
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise Unavailable(f"the server of tools cannot be started: {reason}") from None
    server = StdioServer(process)
    try:
        yield server
    finally:
        with anyio.CancelScope(shield=True):
            await server.close()


def parsed_message(line: bytes) -> Incoming:
    """Return a message, or the error that it is none."""
    try:
        return SessionMessage(mcp_types.jsonrpc_message_adapter.validate_json(line, by_name=False))
    except (ValueError, RecursionError) as error:
        return ValueError(f"no message: {type(error).__name__}")
