"""Web servers on this machine for tests: each connection is answered by a function, byte for byte."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio

Answer = Callable[["Connection"], Awaitable[None]]


@dataclass
class Connection:
    """One request, and the connection to answer it on."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    head: str = ""

    @property
    def path(self) -> str:
        return self.head.split(" ")[1]

    def header(self, name: str) -> str | None:
        for line in self.head.split("\r\n")[1:]:
            key, _, value = line.partition(": ")
            if key.lower() == name.lower():
                return value
        return None

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self, body: bytes = b"", status: str = "200 OK", **headers: str) -> None:
        lines = {"Content-Length": str(len(body)), **{key.replace("_", "-"): value for key, value in headers.items()}}
        head = f"HTTP/1.1 {status}\r\n" + "".join(f"{key}: {value}\r\n" for key, value in lines.items())
        await self.send(head.encode() + b"\r\n" + body)


@dataclass
class WebServer:
    """A server that listens on 127.0.0.1; ``seen`` are the heads of its requests."""

    port: int = 0
    scheme: str = "http"
    seen: list[str] = field(default_factory=list)
    asked: anyio.Event = field(default_factory=anyio.Event)

    def url(self, path: str = "/", host: str = "127.0.0.1") -> str:
        return f"{self.scheme}://{host}:{self.port}{path}"


@asynccontextmanager
async def web_server(answer: Answer, tls: ssl.SSLContext | None = None) -> AsyncIterator[WebServer]:
    """Serve while the body runs."""
    server = WebServer(scheme="http" if tls is None else "https")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            server.seen.append(head)
            server.asked.set()
            await answer(Connection(reader, writer, head))
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()
