"""ASGI middleware that tells a connection how far its request is, and charges its owner for the answer's processor time."""

from __future__ import annotations

import asyncio
import time
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator, MutableMapping
from functools import partial
from typing import Any, TypeVar

import anyio
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from inferd.protocol import Unavailable
from inferd_runtime.server.connections.connection_table import ConnectionTable
from inferd_runtime.server.connections.guarded_connection import GuardedConnection
from inferd_runtime.server.gateway.replies import deny

T = TypeVar("T")
CONNECTION_KEY = "inferd.connection"
CHARGE_KEY = "inferd.charge"
"""Scope key of the function that charges for seconds of work done outside of the request's coroutine."""


class RequestWatch:
    """The outermost middleware. It puts the connection into the scope."""

    def __init__(self, app: ASGIApp, table: ConnectionTable) -> None:
        self._app = app
        self._table = table

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Watch one request, or one WebSocket."""
        connection = self._table.find(scope.get("client")) if scope["type"] in ("http", "websocket") else None
        if connection is None:
            await self._app(scope, receive, send)
            return
        connection.is_websocket = scope["type"] == "websocket"
        has_body = _has_body(scope)
        self._table.head_came(connection, has_body)
        try:
            await self._watch(connection, has_body, scope, receive, send)
        finally:
            self._table.request_over(connection)

    async def _watch(
        self, connection: GuardedConnection, has_body: bool, scope: Scope, receive: Receive, send: Send
    ) -> None:
        charge = partial(self._table.answering, connection)
        scope[CONNECTION_KEY], scope[CHARGE_KEY] = connection, charge
        wait = self._table.begin_answer(connection)
        if wait > 0:  # the client's deadlines do not run while it waits for its turn
            connection.deadlines.head_came(time.monotonic(), has_body=False)
            with anyio.move_on_after(wait):
                await connection.lost.wait()
            if connection.lost.is_set():
                # Not left waiting: a lost connection is counted nowhere, so there could be any number.
                return await deny(Unavailable("the client has left"), scope, receive, send)
            connection.deadlines.head_came(time.monotonic(), has_body)
        sender = _NotingSend(send, self._table.answered, partial(self._table.turn, connection))
        try:
            await timed(self._answered(scope, self._watched(connection, receive), sender), charge)
        except asyncio.CancelledError:  # uvicorn's, when the time to drain is over
            if not sender.began:
                await deny(Unavailable("the server is shutting down"), scope, receive, send)

    async def _answered(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    def _watched(self, connection: GuardedConnection, receive: Receive) -> Receive:
        async def watched() -> Message:
            message = await receive()
            if message["type"] == "websocket.receive":
                if (wait := self._table.begin_message(connection, len(message.get("bytes") or b""))) > 0:
                    await anyio.sleep(wait)
                await self._table.turn(connection)
                self._table.message_came(connection)
            elif not message.get("more_body", False):
                connection.deadlines.body_came()
            return message

        return watched


class _NotingSend:
    """Sends, notes that the answer has begun, and reports its status. Around each part of a longer one it waits for its turn."""

    def __init__(self, send: Send, answered: Callable[[int], None], turn: Callable[[], Awaitable[None]]) -> None:
        self._send = send
        self._answered = answered
        self._turn = turn
        self.began = False

    async def __call__(self, message: Message) -> None:
        self.began = True
        if message["type"].endswith("http.response.start"):  # a refused WebSocket's, too
            self._answered(message["status"])
        goes_on = message.get("more_body", False)
        if goes_on:
            await self._turn()
        await self._send(message)
        if goes_on:
            await self._turn()


def charge_of(scope: MutableMapping[str, Any]) -> Callable[[float], None]:
    """Return the function that charges for what is done outside of a request's coroutine; without the middleware, for nothing."""
    charge: Callable[[float], None] = scope.get(CHARGE_KEY, _charge_nobody)
    return charge


def _charge_nobody(seconds: float) -> None:
    return None


@types.coroutine
def timed(work: Coroutine[Any, Any, T], charge: Callable[[float], None]) -> Generator[Any, Any, T]:
    """Await ``work``, and call ``charge`` with the processor time, in seconds, between every two of its awaits. Returns what it
    returns.
    """
    step: Callable[[], Any] = partial(work.send, None)
    while True:
        started = time.thread_time()
        try:
            wanted = step()
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            charge(time.thread_time() - started)
        try:
            step = partial(work.send, (yield wanted))
        except BaseException as error:  # noqa: BLE001 - it is the work's: cancelled, or closed
            step = partial(work.throw, error)


def _has_body(scope: Scope) -> bool:
    headers = Headers(scope=scope)
    return "transfer-encoding" in headers or headers.get("content-length", "0") != "0"
