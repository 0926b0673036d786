"""ASGI middleware that tells a connection how far its request is."""

from __future__ import annotations

import time

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from inferd_runtime.server.connections.connection_table import ConnectionTable

CONNECTION_KEY = "inferd.connection"


class RequestWatch:
    """The outermost middleware. The connection is in the scope for what is inside."""

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
        self._table.head_came(connection, _has_body(scope))

        async def watched() -> Message:
            message = await receive()
            if message["type"] == "websocket.receive":
                self._table.message_came(connection)
            elif not message.get("more_body", False):
                connection.deadlines.body_came()
            return message

        scope[CONNECTION_KEY] = connection
        try:
            await self._app(scope, watched, send)
        finally:
            connection.deadlines.answered(time.monotonic())


def _has_body(scope: Scope) -> bool:
    headers = Headers(scope=scope)
    return "transfer-encoding" in headers or headers.get("content-length", "0") != "0"
