"""Async tests of the SDK run under asyncio, as programs do; ``wire`` puts a runtime in memory behind a real WebSocket."""

from __future__ import annotations

import asyncio
import contextlib
import http
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgpack  # type: ignore[import-untyped]
import msgspec
import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from inferd.protocol import OPERATIONS, InferdError, to_plain
from inferd.transport import Transport


class Wire:
    """A server for one runtime. ``messages`` holds everything that clients sent; ``open`` the connections."""

    def __init__(self, runtime: Transport, token: str | None) -> None:
        self.runtime = runtime
        self.token = token
        self.url = ""
        self.messages: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.open: set[ServerConnection] = set()
        self.seen = asyncio.Condition()

    def check(self, connection: ServerConnection, request: Request) -> Response | None:
        self.paths.append(request.path)
        if self.token is not None and request.headers.get("Authorization") != f"Bearer {self.token}":
            return connection.respond(http.HTTPStatus.UNAUTHORIZED, "no\n")
        return None

    async def handle(self, connection: ServerConnection) -> None:
        self.open.add(connection)
        async with asyncio.TaskGroup() as tasks:
            async for data in connection:
                message = msgpack.unpackb(data)
                self.messages.append(message)
                async with self.seen:
                    self.seen.notify_all()
                if message["op"] != "cancel":
                    tasks.create_task(self.answer(connection, message))
        self.open.discard(connection)

    async def answer(self, connection: ServerConnection, message: dict[str, Any]) -> None:
        try:
            request = msgspec.convert(message["a"], OPERATIONS[message["op"]])
            reply = {"t": message["t"], "ok": to_plain(await self.runtime.call(request))}
        except InferdError as error:
            reply = {"t": message["t"], "err": to_plain(error.to_wire())}
        await connection.send(msgpack.packb(reply))

    def last_op(self) -> str:
        return self.messages[-1]["op"] if self.messages else ""

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a message made ``condition`` true."""
        async with self.seen, asyncio.timeout(10):
            await self.seen.wait_for(condition)


@pytest.fixture
def wire() -> Callable[..., AbstractAsyncContextManager[Wire]]:
    """``async with wire(runtime, token=None) as server``: it listens on ``server.url``."""

    @contextlib.asynccontextmanager
    async def start(runtime: Transport, token: str | None = None) -> AsyncIterator[Wire]:
        wire = Wire(runtime, token)
        protocols = [Subprotocol("inferd.v1")]
        async with serve(
            wire.handle, "127.0.0.1", 0, subprotocols=protocols, process_request=wire.check, close_timeout=1
        ) as server:
            port = next(iter(server.sockets)).getsockname()[1]
            wire.url = f"ws://127.0.0.1:{port}"
            yield wire

    return start
