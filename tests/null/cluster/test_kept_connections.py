"""Connections to replicas that are kept for the next request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import anyio
import httpcore
import pytest
from waiting import until

from inferd_runtime.cluster.front import kept_connections
from inferd_runtime.cluster.front.kept_connections import KeptConnections

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class Replica:
    """Answers once ``release`` is set, and counts connections."""

    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.writers: list[asyncio.StreamWriter] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                await self.release.wait()
                writer.write(ANSWER)
        writer.close()

    @property
    def request(self) -> httpcore.Request:
        return httpcore.Request("GET", f"http://127.0.0.1:{self.port}/", headers={"host": "x"})


@asynccontextmanager
async def replica() -> AsyncIterator[Replica]:
    one = Replica()
    server = await asyncio.start_server(one.serve, "127.0.0.1", 0)
    one.port = server.sockets[0].getsockname()[1]
    async with server:
        yield one
        for writer in one.writers:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


async def ask(connections: KeptConnections, request: httpcore.Request) -> None:
    async with connections.stream(request) as answer:
        assert await answer.aread() == b"ok"


async def test_a_request_looks_at_no_connection_but_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """250 that a tenant had opened cost each request of everybody 36 ms of the front's loop."""
    looked: list[object] = []
    expired = httpcore.AsyncHTTPConnection.has_expired
    monkeypatch.setattr(kept_connections, "SWEEP_SECONDS", 3600.0)
    connections = KeptConnections(60.0)
    async with replica() as one:
        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(ask, connections, one.request)
            await until(lambda: len(one.writers) == 20)
            one.release.set()
        monkeypatch.setattr(
            httpcore.AsyncHTTPConnection, "has_expired", lambda self: bool(looked.append(self)) or expired(self)
        )
        for _ in range(3):
            await ask(connections, one.request)
        assert len(looked) == 3
        assert len(one.writers) == 20
        await connections.close()


async def test_one_that_the_replica_has_closed_is_not_used_again_and_an_unused_one_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kept_connections, "SWEEP_SECONDS", 0.0)
    async with replica() as one, replica() as other:
        one.release.set()
        other.release.set()
        connections = KeptConnections(60.0)
        await ask(connections, one.request)
        one.writers[0].close()
        await one.writers[0].wait_closed()
        await ask(connections, one.request)
        assert len(one.writers) == 2
        one.writers[1].close()
        await one.writers[1].wait_closed()
        await ask(connections, other.request)
        assert [len(kept) for kept in connections._idle.values()] == [1]
        await connections.close()


async def test_one_that_fails_is_not_kept() -> None:
    connections = KeptConnections(60.0)
    async with replica() as one:
        request = one.request
    with pytest.raises(httpcore.ConnectError):
        await ask(connections, request)
    assert not connections._idle
    async with replica() as one:
        with anyio.move_on_after(0.05):
            await ask(connections, one.request)
        assert not connections._idle
