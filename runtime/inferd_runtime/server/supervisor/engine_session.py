"""The gateway's own end of the engine link, for asyncio: raw frames for the WebSocket relay, calls for the rest."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

import anyio
import msgspec
import zmq

from inferd.protocol import ErrorInfo, InferdError, InternalError, Unavailable
from inferd_runtime.server.supervisor.loop_socket import LoopSocket
from inferd_runtime.session.wire import (
    CANCEL,
    MSGPACK,
    LinkReply,
    close_frames,
    new_identity,
    open_frames,
    parse_reply,
    request_frames,
)

T = TypeVar("T")
OWN_TICKET = 0
"""Of the replies to a session's opening and its close."""
MOST_IDLE = 16
"""Channels without a session that are kept."""
MOST_SESSIONS = 10_000
"""Of one channel, whose tickets have 32 bits."""
CLOSE_SECONDS = 2.0
RETRY_SECONDS = 1.0


class EngineChannel:
    """A session's socket. Frames go in and out as they are; nothing is matched or decoded."""

    def __init__(self, context: zmq.Context[Any], endpoint: str) -> None:
        """Connect. Raises Unavailable if the process has no socket or file left."""
        try:
            socket: zmq.Socket[bytes] = context.socket(zmq.DEALER)
        except zmq.ZMQError as error:
            raise Unavailable(f"no socket is left for another session: {error}", retry_after_s=RETRY_SECONDS) from None
        socket.setsockopt(zmq.IDENTITY, new_identity())
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(endpoint)
        self._socket = LoopSocket(socket)
        self._unanswered = 0
        self.sessions = 0
        self.tickets = itertools.count(OWN_TICKET + 1)
        """Of requests, for all sessions one after the other: what comes late for one is not taken for an answer in the next."""

    @property
    def unanswered(self) -> int:
        """How many replies to its opening and its close are still to come."""
        return self._unanswered

    async def open(self, grant: bytes, label: str) -> None:
        """Ask for the session to be opened; the reply carries ticket 0. What is sent next is handled behind it."""
        await self._socket.send(open_frames(grant, label))
        self._unanswered += 1
        self.sessions += 1

    async def send(self, ticket: int, op: str, payload: bytes | memoryview) -> None:
        """Send one request with a msgpack payload."""
        await self._socket.send(request_frames(ticket, op, MSGPACK, bytes(payload)))

    async def cancel(self, ticket: int) -> None:
        """Ask the engine to drop a request; it still answers it."""
        await self._socket.send(request_frames(ticket, CANCEL, MSGPACK, b"\x80"))

    async def receive(self) -> LinkReply:
        """Wait for the next reply."""
        return self._read(await self._socket.receive())

    def deliver_to(self, take: Callable[[LinkReply], None] | None) -> None:
        """Have each reply handed to ``take`` when it comes; None: :meth:`receive` gets them again."""
        self._socket.deliver_to(None if take is None else lambda frames: take(self._read(frames)))

    def _read(self, frames: Sequence[bytes]) -> LinkReply:
        reply = parse_reply(frames)
        self._unanswered -= reply.ticket == OWN_TICKET
        return reply

    async def request_close(self) -> None:
        """Ask for the session to be closed; the reply carries ticket 0."""
        await self._socket.send(close_frames())
        self._unanswered += 1

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


def error_of(reply: LinkReply) -> InferdError:
    """Return the exception that an error reply means."""
    return msgspec.msgpack.decode(reply.payload, type=ErrorInfo).to_exception()


class EngineSession:
    """Calls over a channel whose session is open, or asked for, while it is :meth:`listening`."""

    def __init__(self, channel: EngineChannel) -> None:
        self._channel = channel
        self._waiting: dict[int, asyncio.Future[LinkReply]] = {}
        self._lost: InferdError | None = None

    async def post(self, request: Any) -> None:
        """Send a request whose reply nobody waits for. Raises Unavailable if the engine is lost."""
        await self._send(next(self._channel.tickets), request)

    async def call(self, request: Any, reply_type: type[T]) -> T:
        """Send a request dataclass and decode its reply. Raises what the engine answers, and Unavailable if it is lost."""
        ticket = next(self._channel.tickets)
        future: asyncio.Future[LinkReply] = asyncio.get_running_loop().create_future()
        self._waiting[ticket] = future
        try:
            await self._send(ticket, request)
            reply = await future
        finally:
            self._waiting.pop(ticket, None)
            if future.done() and not future.cancelled():
                future.exception()  # of an engine that ended while the request was sent: it is raised by that, too
        if not reply.ok:
            raise error_of(reply)
        try:
            return msgspec.msgpack.decode(reply.payload, type=reply_type)
        except msgspec.MsgspecError as error:
            raise InternalError(f"the engine's reply to {request.op} cannot be read: {error}") from None

    async def _send(self, ticket: int, request: Any) -> None:
        if self._lost is not None:
            raise self._lost
        try:
            await self._channel.send(ticket, request.op, msgspec.msgpack.encode(request))
        except zmq.ZMQError:  # the engine has ended, its channel is closed, and that is about to be noticed
            raise Unavailable("the engine process ended", process="engine") from None

    def lose(self, error: InferdError) -> None:
        """End every call that waits, and all later ones, with ``error``: the session is gone."""
        self._lost = error
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Hand replies to the calls that wait for them, while the block runs."""
        self._channel.deliver_to(self._take)
        try:
            yield
        finally:
            self._channel.deliver_to(None)

    def _take(self, reply: LinkReply) -> None:
        """Take a reply. If the session is not opened, all calls end with the reason."""
        if reply.ticket == OWN_TICKET and not reply.ok:
            return self.lose(error_of(reply))
        future = self._waiting.get(reply.ticket)
        if future is not None and not future.done():
            future.set_result(reply)
        return None


@asynccontextmanager
async def engine_channel(
    context: zmq.Context[Any], endpoint: str, grant: bytes, label: str, lost: anyio.Event
) -> AsyncIterator[EngineChannel]:
    """Open a channel with its session, and close both at the end.

    ``lost`` is set when the engine's process ends: opening raises Unavailable then, but an open channel only falls
    silent. Raises what the engine answers to the opening.
    """
    async with opening_channel(context, endpoint, grant, label, lost) as channel:
        reply = await _first_reply(channel, lost)
        if not reply.ok:
            raise error_of(reply)
        yield channel


@asynccontextmanager
async def opening_channel(
    context: zmq.Context[Any],
    endpoint: str,
    grant: bytes,
    label: str,
    lost: anyio.Event,
    idle: list[EngineChannel] | None = None,
) -> AsyncIterator[EngineChannel]:
    """As :func:`engine_channel`, without waiting for the opening: requests may be sent behind it at once.

    ``idle``: channels to the same process that hold no session now, of which it takes one, and puts it back: to make a new one
    takes longer than to open a session.
    """
    channel = idle.pop() if idle else EngineChannel(context, endpoint)
    try:
        await channel.open(grant, label)
        yield channel
    finally:
        # Also where the body never began because its caller was cancelled: the engine opens the session all the same.
        try:
            if not lost.is_set():
                await _close(channel)
        finally:
            _put_back(channel, None if lost.is_set() else idle)


def _put_back(channel: EngineChannel, idle: list[EngineChannel] | None) -> None:
    """Keep a channel whose session is closed, if there is room for it; else close it."""
    if idle is not None and not channel.unanswered and channel.sessions < MOST_SESSIONS and len(idle) < MOST_IDLE:
        idle.append(channel)
    else:
        channel.close()


async def _first_reply(channel: EngineChannel, lost: anyio.Event) -> LinkReply:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_cancel_when, lost, tasks.cancel_scope)
        reply = await channel.receive()
        tasks.cancel_scope.cancel()
        return reply
    raise Unavailable("the engine process ended")


async def _cancel_when(event: anyio.Event, scope: anyio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


async def _close(channel: EngineChannel) -> None:
    """Close the session and wait a moment for the reply, so that the request is not lost with the socket."""
    with anyio.move_on_after(CLOSE_SECONDS, shield=True):
        await channel.request_close()
        while channel.unanswered:
            await channel.receive()
