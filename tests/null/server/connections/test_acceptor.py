"""What the system runs out of: a connection is late then, or refused by name, and nothing ends."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import socket
import ssl
import time
import weakref
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import trustme
import zmq

from inferd.protocol import Unavailable
from inferd_runtime.accepting import accept
from inferd_runtime.cli.client import Server
from inferd_runtime.interpreter import no_collections
from inferd_runtime.server.connections import acceptor as acceptor_module
from inferd_runtime.server.connections.acceptor import ACCEPTED_IN_A_ROW, Acceptor, Listener
from inferd_runtime.server.connections.connection_table import ConnectionTable, close_frame
from inferd_runtime.server.connections.guarded_connection import (
    JOINED_BYTES,
    PIECE_BYTES,
    UNREAD,
    GuardedConnection,
)
from inferd_runtime.server.connections.loop_shares import REGULAR_MOST_SECONDS, REGULAR_SHARE
from inferd_runtime.server.gateway.listening import listen
from inferd_runtime.server.supervisor.engine_session import EngineChannel
from inferd_runtime.server.tenancy.quotas import Quotas, same_for_all
from inferd_runtime.server.tenancy.tenant_use import SharedSizes, TenantUse
from inferd_runtime.settings.settings import Settings

SMALL_BUFFER = 64 << 10
LONG_ANSWER = 32 << 20
MOST_BELOW = 12 << 20
"""What transport and system hold of an answer that nobody reads."""


class Echo(asyncio.Protocol):
    """Stands for the HTTP server."""

    def __init__(self) -> None:
        self.pieces: list[int] = []
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        assert self.transport is not None
        self.pieces.append(len(data))
        self.transport.write(data)


def new_table(sizes: SharedSizes | None = None) -> ConnectionTable:
    return ConnectionTable(TenantUse(same_for_all(Quotas()), sizes))


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ECONNABORTED])
def test_a_system_without_files_makes_connections_wait_and_ends_nothing(
    number: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)

    async def connect() -> bytes:
        failures = [OSError(number, "none left")] * 3

        async def failing(listener: socket.socket) -> Any:
            if failures:
                raise failures.pop()
            return await accept(listener)

        monkeypatch.setattr(acceptor_module, "accept", failing)
        with listen("127.0.0.1", 0) as listener:
            acceptor = Acceptor(Listener(listener), new_table(), Echo)
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            writer.write(b"hello")
            answer = await asyncio.wait_for(reader.readexactly(5), 20)
            writer.close()
            acceptor.close()
            await acceptor.wait_closed()
        assert not failures
        return answer

    assert asyncio.run(connect()) == b"hello"


def test_a_full_backlog_does_not_hold_the_loop() -> None:
    async def accepted() -> list[int]:
        table = new_table()
        grown: list[int] = []
        with listen("127.0.0.1", 0) as listener, contextlib.ExitStack() as held:
            for _ in range(100):
                held.enter_context(socket.create_connection(listener.getsockname()))
            acceptor = Acceptor(Listener(listener), table, Echo)
            while sum(grown) < 100 and len(grown) < 1000:
                before = len(table._open)
                await asyncio.sleep(0)
                grown.append(len(table._open) - before)
            await asyncio.gather(*acceptor._connecting)
            for connection in list(table._open.values()):
                connection.abort()
            acceptor.close()
            await acceptor.wait_closed()
        assert sum(grown) == 100
        return grown

    assert max(asyncio.run(accepted())) <= ACCEPTED_IN_A_ROW


def test_what_is_accepted_sends_at_once_and_is_parsed_in_pieces() -> None:
    async def connect() -> tuple[int, list[int]]:
        made: list[Echo] = []

        def protocol() -> Echo:
            made.append(Echo())
            return made[-1]

        with listen("127.0.0.1", 0) as listener:
            acceptor = Acceptor(Listener(listener), new_table(), protocol)
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            sent = bytes(range(256)) * 1000
            writer.write(sent)
            assert await asyncio.wait_for(reader.readexactly(len(sent)), 20) == sent
            transport = made[0].transport
            assert transport is not None
            no_delay = transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            writer.close()
            acceptor.close()
            await acceptor.wait_closed()
        return no_delay, made[0].pieces

    no_delay, pieces = asyncio.run(connect())
    assert no_delay
    assert max(pieces) <= PIECE_BYTES


class Slow(asyncio.Protocol):
    """Stands for an HTTP server's protocol that takes long over what it reads: of the clock's time, or of the processor's."""

    def __init__(self, clock: Callable[[], float], seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds

    def data_received(self, data: bytes) -> None:
        started = self._clock()
        while self._clock() - started < self._seconds:
            time.sleep(0.001 if self._clock is time.monotonic else 0)


@pytest.mark.parametrize(("clock", "seconds"), [(time.monotonic, 0.1), (time.thread_time, 0.02)])
def test_what_else_takes_the_thread_keeps_what_watches_livez_waiting_no_longer(
    clock: Callable[[], float], seconds: float
) -> None:
    """Its share is a fiftieth: a tenth of a second without a processor, while it was read, left it unread for five."""
    table = new_table()
    connection = table.arrived(("127.0.0.1", 1), partial(Slow, clock, seconds))
    connection.connection_made(cast(asyncio.Transport, FullTransport(0)))
    for _ in range(2):
        table.head_came(connection, has_body=False)
    connection.is_new = False
    waits: list[float] = []

    async def read() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(connection, "parsed", waits.append)
            connection.data_received(b"GET /livez")

    asyncio.run(read())
    assert waits[0] <= REGULAR_MOST_SECONDS / REGULAR_SHARE


class FullTransport:
    """A transport whose client reads nothing."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.aborted = False

    def get_write_buffer_size(self) -> int:
        return self.size

    def set_write_buffer_limits(self, high: int) -> None:
        """Do nothing."""

    def abort(self) -> None:
        self.aborted = True

    def is_closing(self) -> bool:
        return self.aborted

    def pause_reading(self) -> None:
        """Do nothing."""

    def resume_reading(self) -> None:
        """Do nothing."""


def test_what_served_a_connection_that_is_over_is_freed_at_once() -> None:
    """Connections that came and went by the thousand held the loop for half a second, when a collection of garbage freed them."""
    connection = new_table().arrived(("127.0.0.1", 1), Echo)
    connection.connection_made(cast(asyncio.Transport, FullTransport(0)))
    serving = weakref.ref(connection.inner)
    with no_collections():
        connection.connection_lost(None)
        assert serving() is None


class Silent(asyncio.Protocol):
    """Stands for the HTTP server, and takes what it is told."""


def test_answers_that_nobody_reads_are_counted_and_their_connections_end() -> None:
    """A hundred connections that asked for a response of 20 MiB each, and read none of it, took 2 GiB of the gateway."""
    use = TenantUse(same_for_all(Quotas()))
    table = ConnectionTable(use)

    def unread(port: int, tenant: str, size: int) -> GuardedConnection:
        connection = table.arrived(("127.0.0.1", port), Silent)
        connection.connection_made(cast(asyncio.Transport, FullTransport(size)))
        table.belongs_to(connection, tenant)
        connection.pause_writing()
        return connection

    size = 20 << 20
    connections = [unread(port, "eve", size) for port in range(100)]
    ended = [one for one in connections if cast(FullTransport, one._transport).aborted]
    assert use.unread.held("eve") == (100 - len(ended)) * size <= use.unread.rule.capacity - 7 * (64 << 20)
    assert ended == connections[-len(ended) :]
    ann = unread(1000, "ann", size)
    assert not cast(FullTransport, ann._transport).aborted
    connections[0].resume_writing()
    assert use.unread.held("eve") == (99 - len(ended)) * size
    for connection in [*connections, ann]:
        connection.connection_lost(None)
    assert use.unread.used == 0


def test_messages_of_websockets_that_are_never_complete_are_counted_and_end_with_a_reason() -> None:
    table = new_table(SharedSizes(body_bytes=1 << 20, one_body=256 << 10))
    connection = table.arrived(("127.0.0.1", 1), Echo)
    other = table.arrived(("127.0.0.1", 2), Echo)
    farewells: list[bytes] = []
    connection.close_with = farewells.append  # type: ignore[method-assign]
    for one, tenant in ((connection, "eve"), (other, "ann")):
        table.belongs_to(one, tenant)
    for _ in range(20):
        table.received(connection, 64 << 10)
    assert farewells
    assert farewells[0][2:4] == (1013).to_bytes(2, "big")
    table.received(other, 200 << 10)
    assert other.held_bytes >= 200 << 10
    table.message_came(other)
    table.ended(connection)
    table.ended(other)
    assert table._use.bodies.used == table._use.connections.used == 0


def test_a_closing_frame_has_room_for_its_reason() -> None:
    frame = close_frame(1013, "é" * 500)
    assert frame[0] == 0x88
    assert len(frame) == 2 + frame[1] <= 2 + 125
    frame[4:].decode()


def test_no_socket_for_the_engine_is_unavailable_and_says_when_to_come_again() -> None:
    class Exhausted:
        def socket(self, kind: int) -> None:
            raise zmq.ZMQError(errno.EMFILE)

    with pytest.raises(Unavailable, match="no socket is left") as caught:
        EngineChannel(cast("zmq.Context[Any]", Exhausted()), "ipc://x")
    assert caught.value.detail["retry_after_s"] > 0


def test_a_connection_that_was_never_made_can_be_given_up() -> None:
    table = new_table()
    connection = table.arrived(("127.0.0.1", 1), Echo)
    refused: list[GuardedConnection] = []
    connection.refuse = lambda: refused.append(connection)
    connection.abort()
    assert refused == [connection]


def test_the_token_of_this_machines_server_is_sent_to_no_other_one(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")
    assert Server.of(Settings(state_dir=tmp_path)).token == "secret"
    assert Server.of(Settings(state_dir=tmp_path, url="http://127.0.0.1:1")).token == "secret"
    assert Server.of(Settings(state_dir=tmp_path, url="https://elsewhere.example")).token is None
    assert Server.of(Settings(state_dir=tmp_path, url="https://elsewhere.example", token="theirs")).token == "theirs"


class Sink(asyncio.Transport):
    """Records what is sent."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes] = []

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent.append(bytes(data))

    def close(self) -> None:
        self.sent.append(b"closed")

    def is_closing(self) -> bool:
        return self.sent[-1:] == [b"closed"]


def tls_contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Contexts of a server and of a client that trusts it."""
    authority = trustme.CA()
    served, trusted = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(served)
    authority.configure_trust(trusted)
    return served, trusted


class Talker(asyncio.Protocol):
    """Stands for an HTTP server that sends one long answer and closes the connection."""

    def __init__(self, answer: bytes, unread: asyncio.Event) -> None:
        self.answer = answer
        self.unread = unread

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        answering = cast(asyncio.Transport, transport)
        answering.write(self.answer)
        answering.close()
        assert answering.is_closing()

    def pause_writing(self) -> None:
        self.unread.set()


def test_head_and_body_go_out_together_and_what_is_long_goes_out_at_once() -> None:
    async def write() -> list[bytes]:
        sink, server = Sink(), Echo()
        new_table().arrived(("127.0.0.1", 1), lambda: server).connection_made(sink)
        transport = server.transport
        assert transport is not None
        for piece in (b"head", b"body", b""):
            transport.write(piece)
        assert sink.sent == []
        await asyncio.sleep(0)
        transport.write(b"x" * JOINED_BYTES)
        transport.write(b"last")
        transport.close()
        transport.write(b"behind the end")
        await asyncio.sleep(0)
        return sink.sent

    assert asyncio.run(write()) == [b"headbody", b"x" * JOINED_BYTES, b"last", b"closed"]


def test_a_connection_with_tls_that_is_closed_twice_leaves_no_traceback_when_its_client_closes_too() -> None:
    async def ends() -> list[dict[str, Any]]:
        told, unread, loop = list[dict[str, Any]](), asyncio.Event(), asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: told.append(context))
        served, trusted = tls_contexts()
        table, lost = new_table(), asyncio.Event()

        class ClosesTwice(Talker):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                super().connection_made(transport)
                transport.close()

            def connection_lost(self, exc: Exception | None) -> None:
                lost.set()

        def arrived() -> GuardedConnection:
            return table.arrived(("127.0.0.1", 1), lambda: ClosesTwice(b"answer", unread))

        server = await loop.create_server(arrived, "127.0.0.1", 0, ssl=served)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2], ssl=trusted)
        assert await reader.read() == b"answer"
        writer.close()
        await lost.wait()
        server.close()
        return told

    assert asyncio.run(ends()) == []


def tls_connections() -> int:
    """How many there are, with those that only a collection of garbage would free."""
    return sum(type(each) is SSLProtocol for each in gc.get_objects())


@pytest.mark.parametrize("first", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x40\x00" + bytes(200)])
def test_a_handshake_that_fails_is_freed_at_once(first: bytes) -> None:
    """A thousand of them, by somebody without a token, took 300 MB until garbage was collected, which is seldom."""

    async def fail() -> int:
        served, _ = tls_contexts()
        listening, before = socket.create_server(("127.0.0.1", 0)), tls_connections()
        acceptor = Acceptor(Listener(listening, lambda: served), new_table(), asyncio.Protocol)
        with no_collections():
            for _ in range(3):
                reader, writer = await asyncio.open_connection(*listening.getsockname()[:2])
                writer.write(first)
                writer.write_eof()
                await reader.read()
                writer.close()
            await asyncio.gather(*acceptor._connecting)
            left = tls_connections() - before
        acceptor.close()
        await acceptor.wait_closed()
        listening.close()
        return left

    assert asyncio.run(fail()) == 0


@pytest.mark.parametrize("tls", [False, True])
def test_of_an_answer_that_nobody_reads_the_transport_holds_little_and_the_tenant_pays_the_rest(
    tls: bool, tmp_path: Path
) -> None:
    """asyncio's TLS says that nothing waits while all of an answer does, in the transport below it."""
    served, trusted = tls_contexts()
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL_BUFFER)
    table, connections = new_table(), list[GuardedConnection]()

    def arrived(unread: asyncio.Event) -> GuardedConnection:
        connection = table.arrived(("127.0.0.1", 1), lambda: Talker(bytes(LONG_ANSWER), unread))
        connection.tenant = "ann"
        connections.append(connection)
        return connection

    async def read() -> None:
        unread, loop = asyncio.Event(), asyncio.get_running_loop()
        server = await loop.create_server(partial(arrived, unread), sock=listening, ssl=served if tls else None)
        address = listening.getsockname()[:2]
        reader, writer = await asyncio.open_connection(*address, ssl=trusted if tls else None, limit=SMALL_BUFFER)
        await unread.wait()
        (connection,) = connections
        assert connection.is_paused(UNREAD)
        assert connection.unread_bytes > LONG_ANSWER - MOST_BELOW
        for left in range(LONG_ANSWER, 0, -SMALL_BUFFER):
            await reader.readexactly(min(SMALL_BUFFER, left))
        assert await reader.read() == b""
        assert connection.unread_bytes == 0
        writer.close()
        server.close()

    asyncio.run(read())
