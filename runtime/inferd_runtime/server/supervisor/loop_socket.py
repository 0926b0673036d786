"""ZeroMQ for an event loop: its context, and a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import zmq

from inferd_runtime.server.processes.rundir import let_children_connect
from inferd_runtime.session.wire import receive_frames, send_frames

MAX_ZMQ_SOCKETS = 16384
"""Far more than the sessions of scripts that the gateway admits: ZeroMQ's own 1,023 must not be what refuses one."""
MOST_AT_ONCE = 64
"""Messages that are handed on before other work of the loop has a turn."""
READABLE, WRITABLE = int(zmq.POLLIN), int(zmq.POLLOUT)


class LoopSocket:
    """A socket of the event loop that made this. What can be sent or received at once is, without a turn of the loop.

    pyzmq's own socket for asyncio makes futures and combines flags for each message, which takes longer than all the rest of
    relaying it.
    """

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        socket.setsockopt(zmq.SNDTIMEO, 0)
        self._socket = socket
        self._waiting: dict[asyncio.Future[None], int] = {}
        self._take: Callable[[list[bytes]], None] | None = None
        self._loop = asyncio.get_running_loop()
        self._descriptor = int(socket.getsockopt(zmq.FD))
        self._loop.add_reader(self._descriptor, self._look)

    @property
    def closed(self) -> bool:
        """True once it is closed."""
        return self._socket.closed

    def send_now(self, frames: Sequence[bytes]) -> None:
        """Send a message. Raises zmq.Again where it would have to wait, and ZMQError once the socket is closed."""
        try:
            send_frames(self._socket, frames)
        finally:
            self._look_for_others()

    async def send(self, frames: Sequence[bytes]) -> None:
        """Send a message when there is room for it. Raises ZMQError once the socket is closed."""
        while True:
            try:
                return self.send_now(frames)
            except zmq.Again:
                await self._until(WRITABLE)

    def receive_now(self) -> list[bytes]:
        """Return the next message. Raises zmq.Again where none has come, and ZMQError once the socket is closed."""
        frames = receive_frames(self._socket)
        self._look_for_others()
        return frames

    async def receive(self) -> list[bytes]:
        """Return the next message when there is one. Raises ZMQError once the socket is closed."""
        while True:
            try:
                return self.receive_now()
            except zmq.Again:
                await self._until(READABLE)

    def deliver_to(self, take: Callable[[list[bytes]], None] | None) -> None:
        """Have each message handed to ``take``, which raises nothing, when it comes: that saves a task which would receive it.
        None: :meth:`receive` gets them again.
        """
        self._take = take
        if take is not None:
            self._look()

    def close(self) -> None:
        """Close the socket. Tasks that wait on it get the ZMQError: if they ended as cancelled, though nobody cancelled them, the
        other tasks of their group would end, too.
        """
        if not self._socket.closed:
            self._loop.remove_reader(self._descriptor)
            self._socket.close()
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    async def _until(self, event: int) -> None:
        future = self._loop.create_future()
        self._waiting[future] = event
        try:
            if len(self._waiting) > 1 or self._take is not None:
                self._look()  # what has just failed took notice of what the others wait for
            await future
        finally:
            del self._waiting[future]

    def _look_for_others(self) -> None:
        """Wake other waiters: a send or receive clears the descriptor, so it does not tell them of what has arrived."""
        if self._waiting or self._take is not None:
            self._look()

    def _look(self) -> None:
        """Wake the waiters whose event is there, and deliver what has come. The descriptor stays readable until then."""
        if self._socket.closed:
            return
        if self._take is not None:
            self._deliver(self._take)
        if self._take is not None and not self._waiting:
            return
        events = int(self._socket.getsockopt(zmq.EVENTS))
        for future, event in self._waiting.items():
            if events & event and not future.done():
                future.set_result(None)

    def _deliver(self, take: Callable[[list[bytes]], None]) -> None:
        for _ in range(MOST_AT_ONCE):
            try:
                frames = receive_frames(self._socket)
            except zmq.Again:
                return
            take(frames)
            if self._take is not take:
                return
        self._loop.call_soon(self._look)


@contextmanager
def zmq_context() -> Iterator[zmq.Context[Any]]:
    """Lend a context, which is destroyed with all of its sockets when the block ends."""
    context: zmq.Context[Any] = zmq.Context()
    context.set(zmq.MAX_SOCKETS, MAX_ZMQ_SOCKETS)
    try:
        yield context
    finally:
        context.destroy(linger=0)


def control_socket(context: zmq.Context[Any], endpoint: str) -> LoopSocket:
    """Return the socket to which the workers connect. It keeps what one does not read: a ROUTER drops what is too much."""
    socket: zmq.Socket[bytes] = context.socket(zmq.ROUTER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.bind(endpoint)
    let_children_connect(endpoint)
    return LoopSocket(socket)
