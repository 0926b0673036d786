"""The draft engine's end: it takes connections from the network and hands their requests to a draft model."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from functools import partial

from inferd_runtime.accepting import accept, connect_accepted
from inferd_runtime.draft_models.messages import AskDraft, DraftAnswer, DraftTransport, DropDraft
from inferd_runtime.draft_models.remote.checks import MOST_ERROR, check_ask
from inferd_runtime.draft_models.remote.frames import Frame, Kind, MalformedFrame, pack, unpack
from inferd_runtime.draft_models.remote.handshake import DraftHandshake, DraftTerms, Refused, RefusedForNow
from inferd_runtime.draft_models.remote.sessions import DraftSession, HalfOpen, SessionTable
from inferd_runtime.draft_models.remote.streams import ConnectionEnded, FrameStream

LOG = logging.getLogger("inferd.drafts")
HANDSHAKE_SECONDS = 10.0
"""For TLS and the hand-shake together."""
TICK_SECONDS = 0.2
ACCEPT_PAUSE = 0.1
"""Seconds to wait when the system has no descriptors left."""
MOST_PENDING = 8 << 20
"""Bytes of a session's requests that are not answered; with more, no more are read."""
REQUEST_BYTES = 1024
"""What a request counts for beside its frame's payload: one of 33 bytes takes 500 while it waits."""
MOST_UNSENT = 4 << 20
"""Bytes of answers that a target may leave unread."""


@dataclass
class _Guest:
    """One connection: its frames, its session once it has shown the key, and the bytes of its open requests."""

    stream: FrameStream
    session: DraftSession | None = None
    pending: int = 0
    room: asyncio.Event = field(default_factory=asyncio.Event)

    async def has_room(self) -> None:
        """Wait until so many requests are answered that another one may be read."""
        while self.pending > MOST_PENDING:
            self.room.clear()
            await self.room.wait()


class DraftService:
    """Serves one draft model behind ``transport`` to all targets that know the key, in one thread's event loop.

    What a stranger sends is bounded in size, number and time before it is looked at. A frame that is malformed, or that no
    target would send, ends its own connection and nothing else.
    """

    def __init__(
        self, transport: DraftTransport, terms: DraftTerms, key: bytes, tls: ssl.SSLContext | None = None,
        *, sessions: SessionTable | None = None, half_open: HalfOpen | None = None,
        handshake_seconds: float = HANDSHAKE_SECONDS,
    ) -> None:  # fmt: skip
        self._transport = transport
        self._terms = terms
        self._key = key
        self._tls = tls
        self._sessions = SessionTable() if sessions is None else sessions
        self._half_open = HalfOpen() if half_open is None else half_open
        self._handshake_seconds = handshake_seconds

    @property
    def sessions(self) -> int:
        """How many sessions are open."""
        return len(self._sessions)

    async def serve(self, listener: socket.socket) -> None:
        """Take connections until cancelled."""
        listener.setblocking(False)
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group, self._polled(loop):
            group.create_task(self._tick())
            while True:
                try:
                    connection, address = await accept(listener)
                except OSError as error:
                    LOG.warning("no connection can be taken: %s", error)
                    await asyncio.sleep(ACCEPT_PAUSE)
                    continue
                self._take(group, connection, str(address[0]))

    @contextlib.asynccontextmanager
    async def _polled(self, loop: asyncio.AbstractEventLoop) -> AsyncIterator[None]:
        sources = [source.fileno() for source in self._transport.waits_on]
        for source in sources:
            loop.add_reader(source, self._transport.poll)
        try:
            yield
        finally:
            for source in sources:
                loop.remove_reader(source)

    async def _tick(self) -> None:
        """Poll now and then, too: a model's process that has ended sends nothing."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self._transport.poll()

    def _take(self, group: asyncio.TaskGroup, connection: socket.socket, address: str) -> None:
        if not self._half_open.enter(address):
            connection.close()
            return
        group.create_task(self._serve_connection(connection, address))

    async def _serve_connection(self, connection: socket.socket, address: str) -> None:
        """Serve one connection to its end. Nothing that happens on it reaches beyond."""
        with contextlib.closing(connection):
            try:
                await self._serve_guest(connection, address)
            except (ConnectionEnded, MalformedFrame, Refused, OSError) as error:
                # Not louder: strangers could fill the log with it. A target says itself why it has no connection.
                LOG.debug("connection from %s ended: %s", address, str(error) or type(error).__name__)
            except Exception:
                # The boundary of a connection: a bug ends this one alone.
                LOG.exception("connection from %s ended", address)

    async def _serve_guest(self, connection: socket.socket, address: str) -> None:
        stream: FrameStream | None = None
        guest: _Guest | None = None
        try:
            try:
                async with asyncio.timeout(self._handshake_seconds):
                    stream = await self._open(connection)
                    guest = _Guest(stream)
                    await self._shake_hands(guest)
            finally:
                self._half_open.leave(address)
            LOG.info("a target at %s has opened a session", address)
            await self._answer_requests(guest)
        finally:
            if guest is not None and guest.session is not None:
                self._drop(self._sessions.close(guest.session))
                LOG.info("the session of a target at %s is over", address)
            if stream is not None:
                stream.abort()

    async def _open(self, connection: socket.socket) -> FrameStream:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        transport = await connect_accepted(lambda: protocol, connection, self._tls, self._handshake_seconds)
        return FrameStream(reader, asyncio.StreamWriter(transport, protocol, reader, loop))

    async def _shake_hands(self, guest: _Guest) -> None:
        """Raises Refused, which the target was told, or MalformedFrame."""
        stream = guest.stream
        shake = DraftHandshake(self._key, partial(self._admit, guest))
        while shake.keys is None:
            try:
                message = shake.receive(await stream.receive())
            except Refused as refused:
                stream.send(Kind.REFUSED, str(refused).encode(), int(isinstance(refused, RefusedForNow)))
                await stream.finish()
                raise
            stream.send(message.kind, message.payload)
        stream.incoming.rekey(shake.keys.from_target, self._terms.most_bytes)
        stream.outgoing.rekey(shake.keys.from_draft)

    def _admit(self, guest: _Guest) -> DraftTerms:
        guest.session = self._sessions.open()
        return replace(self._terms, session=guest.session.name)

    async def _answer_requests(self, guest: _Guest) -> None:
        """Take requests until the target ends the session. Raises what ends it otherwise."""
        while True:
            async with asyncio.timeout(self._terms.idle_seconds):
                frame = await guest.stream.receive()
            if frame.kind is Kind.END:
                return
            self._handle(guest, frame)
            async with asyncio.timeout(self._terms.idle_seconds):
                await guest.has_room()

    def _handle(self, guest: _Guest, frame: Frame) -> None:
        assert guest.session is not None
        if frame.kind is Kind.ASK:
            self._ask(guest, guest.session, frame)
        elif frame.kind is Kind.DROP:
            number = guest.session.drop(unpack(frame.payload, DropDraft).sequence)
            self._drop([] if number is None else [number])
        elif frame.kind is Kind.PING:
            self._send(guest, Kind.PONG)
        else:
            raise MalformedFrame(f"{frame.kind.name} where requests were expected")

    def _ask(self, guest: _Guest, session: DraftSession, frame: Frame) -> None:
        request = unpack(frame.payload, AskDraft)
        check_ask(request, self._terms)
        size = len(frame.payload) + REQUEST_BYTES
        guest.pending += size
        done = partial(self._answered, guest, frame.ticket, size)
        number = session.number(request)
        if number is None:
            return done(DraftAnswer(lost=True))
        self._transport.ask(replace(request, sequence=number), done)
        self._drop(session.surplus())
        # A socket of ZeroMQ is not readable any more once something was sent on it.
        self._transport.poll()

    def _answered(self, guest: _Guest, ticket: int, size: int, answer: DraftAnswer) -> None:
        guest.pending -= size
        guest.room.set()
        if answer.error:
            answer = replace(answer, error=answer.error[:MOST_ERROR])
        self._send(guest, Kind.ANSWER, pack(answer), ticket)

    def _send(self, guest: _Guest, kind: Kind, payload: bytes = b"", ticket: int = 0) -> None:
        """Send a frame. A peer that leaves too much unread loses its connection."""
        guest.stream.send(kind, payload, ticket)
        if guest.stream.unsent > MOST_UNSENT:
            guest.stream.abort()

    def _drop(self, numbers: list[int]) -> None:
        for number in numbers:
            self._transport.drop(number)
