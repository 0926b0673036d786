"""Responses over a WebSocket: each message of the client's is a request, and is answered with the events of its response.

Requests are answered one after the other, as they came; one that is being answered may be cancelled. The latest response is held
for the next request, where it is not stored. What fails before its events begin is an event ``error``.
"""

from __future__ import annotations

import asyncio
import contextlib

import anyio
from starlette.types import Message
from starlette.websockets import WebSocket, WebSocketDisconnect

from inferd.protocol import InferdError, LimitExceeded
from inferd_runtime.server.connections.connection_table import TRY_AGAIN_LATER
from inferd_runtime.server.dialects.responses.answer import ResponsesExchange
from inferd_runtime.server.dialects.responses.socket_request import cancels, error_event, read_create_event
from inferd_runtime.server.dialects.responses.stored import StoredResponse
from inferd_runtime.server.dialects.statuses import BODY_LIMIT, limit_of
from inferd_runtime.server.gateway.auth import TENANT_KEY
from inferd_runtime.server.gateway.chat_routes import ChatApi
from inferd_runtime.server.gateway.request_watch import charge_of, timed
from inferd_runtime.server.gateway.requests import check_size
from inferd_runtime.server.gateway.script_session import close_reason
from inferd_runtime.server.response_store.response_file import about_bytes
from inferd_runtime.server.response_store.response_store import ResponseStore

TOO_BIG = 1009
"""The close code for a message that is too large (RFC 6455, section 7.4.1)."""
MOST_WAITING = 8
"""Requests of one connection that may wait for the answer of another one."""


class ResponsesSocket:
    """One client's connection."""

    def __init__(self, websocket: WebSocket, chat: ChatApi, store: ResponseStore) -> None:
        self._websocket = websocket
        self._chat = chat
        self._store = store
        self._tenant: str = websocket.scope[TENANT_KEY]
        self._requests = asyncio.Queue[bytes](MOST_WAITING)
        self._waiting_bytes = 0
        self._answered: ResponsesExchange | None = None
        self._answering = anyio.CancelScope()
        self._unstored: StoredResponse | None = None
        self._unstored_bytes = 0

    async def serve(self) -> None:
        """Answer what the client asks, until it has left."""
        await self._websocket.accept()
        use = self._chat.runtime.use
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._charged)
                await self._read()
                tasks.cancel_scope.cancel()
        finally:
            use.bodies.give_back(self._tenant, self._waiting_bytes)
            use.outstanding.give_back(self._tenant, self._unstored_bytes)

    async def _read(self) -> None:
        """Take requests until the client leaves, or sends more than may wait, which closes the connection."""
        with contextlib.suppress(WebSocketDisconnect):
            try:
                while True:
                    self._take(await self._websocket.receive_bytes())
            except LimitExceeded as error:
                await self._tell(error)
                code = TOO_BIG if limit_of(error) == BODY_LIMIT else TRY_AGAIN_LATER
                await self._websocket.close(code, close_reason(error.message))

    def _take(self, body: bytes) -> None:
        """Have a request wait for its turn. Raises LimitExceeded where it, or what waits with it, is too much.

        A message that cancels nothing that goes on is not answered: the response was over before it came.
        """
        answered = self._answered
        if (cancels_it := cancels(body, "" if answered is None else answered.id)) is not None:
            if cancels_it and answered is not None and answered.ended is None:
                self._answering.cancel()
            return
        check_size(len(body), self._chat.runtime.settings.max_body_bytes)
        if self._requests.full():
            text = f"{MOST_WAITING} requests of this connection wait already"
            raise LimitExceeded(text, limit="requests", value=MOST_WAITING, raise_with="waiting for an answer")
        self._chat.runtime.use.bodies.take(self._tenant, len(body))
        self._waiting_bytes += len(body)
        self._requests.put_nowait(body)

    async def _charged(self) -> None:
        await timed(self._answer_all(), charge_of(self._websocket.scope))

    async def _answer_all(self) -> None:
        while True:
            body = await self._requests.get()
            try:
                exchange = await self._read_request(body)
                with anyio.CancelScope() as self._answering:
                    self._answered = exchange
                    await self._answer(exchange)
                if self._answering.cancelled_caught:
                    await self._send({"body": exchange.cancelled()})
                self._hold(exchange)
            except InferdError as error:
                await self._tell(error)
            finally:
                self._answered = None

    async def _read_request(self, body: bytes) -> ResponsesExchange:
        """Return a request with what it follows. Raises InvalidRequest, NotFound, Unavailable."""
        self._chat.runtime.use.bodies.give_back(self._tenant, len(body))
        self._waiting_bytes -= len(body)
        exchange = await self._chat.read_body(self._websocket, body, read_create_event)
        await self._store.follow(exchange, self._tenant, self._unstored)
        exchange.when_complete = lambda stored: self._store.keep(stored, self._tenant)
        return exchange

    async def _answer(self, exchange: ResponsesExchange) -> None:
        """Send a response's events. Raises what goes wrong before the first one."""
        if exchange.computes:
            await (await self._chat.respond(exchange, self._tenant)).send_to(self._send)
        else:
            await self._chat.serving.target(exchange.model, self._tenant)
            await self._send({"body": exchange.opening() + exchange.closing()})

    def _hold(self, exchange: ResponsesExchange) -> None:
        """Hold a response that is not stored for the next request, in place of the one before, where there is room for it."""
        if exchange.ended is None:
            return
        places = self._chat.runtime.use.outstanding
        places.give_back(self._tenant, self._unstored_bytes)
        self._unstored, self._unstored_bytes = None, 0
        if exchange.is_stored:
            return
        with contextlib.suppress(LimitExceeded):
            size = about_bytes(exchange.ended)
            places.take(self._tenant, size)
            self._unstored, self._unstored_bytes = exchange.ended, size

    async def _send(self, message: Message) -> None:
        """Send a part of an answer, as the body of a reply over HTTP brings it: each line is an event."""
        for event in message.get("body", b"").splitlines():
            await self._send_event(event)

    async def _tell(self, error: InferdError) -> None:
        await self._send_event(error_event(error))

    async def _send_event(self, event: bytes) -> None:
        """Send, unless the client has left: who reads notices that, too, and ends everything."""
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):
            await self._websocket.send_text(event.decode())
