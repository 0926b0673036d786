"""A relay between a client and a server that cuts each connection after some bytes of the server's."""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.abc


class CuttingRelay:
    """``most``: bytes of answers after which a connection is cut at the latest, at a place that the seed determines."""

    def __init__(self, port: int, most: int, seed: int) -> None:
        self.cuts = 0
        self.connections = 0
        self._port = port
        self._most = most
        self._random = random.Random(seed)

    async def serve(self, client: anyio.abc.SocketStream) -> None:
        self.connections += 1
        allowed = self._random.randint(1, self._most)
        async with (
            client,
            await anyio.connect_tcp("127.0.0.1", self._port) as server,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(self._requests, client, server)
            await self._answers(server, client, allowed)
            tasks.cancel_scope.cancel()

    async def _requests(self, client: anyio.abc.SocketStream, server: anyio.abc.SocketStream) -> None:
        with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError):
            while True:
                await server.send(await client.receive())

    async def _answers(self, server: anyio.abc.SocketStream, client: anyio.abc.SocketStream, allowed: int) -> None:
        with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError):
            while True:
                data = await server.receive()
                await client.send(data[:allowed])
                allowed -= len(data)
                if allowed <= 0:
                    self.cuts += 1
                    return


@asynccontextmanager
async def cutting_relay(port: int, most: int, seed: int) -> AsyncIterator[tuple[str, CuttingRelay]]:
    """Yield the relay's address, and the relay."""
    relay = CuttingRelay(port, most, seed)
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, relay.serve)
        own = listener.extra(anyio.abc.SocketAttribute.local_port)
        yield f"http://127.0.0.1:{own}", relay
        tasks.cancel_scope.cancel()
