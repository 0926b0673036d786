"""Every request has an id: the client's ``x-request-id`` if it is a plain one, else a new one. It is given back, and logged."""

from __future__ import annotations

import logging
import secrets
import string
import time
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from inferd_runtime.log_lines import log_fields

HEADER = "x-request-id"
ANTHROPIC_HEADER = "request-id"
"""Where Anthropic's clients look for it."""
REQUEST_KEY = "inferd.request"
MAX_ID = 64
MAX_TRACEPARENT = 128
PLAIN = frozenset(string.ascii_letters + string.digits + "._-")
STARTS = {"http.response.start", "websocket.accept", "websocket.http.response.start"}
log = logging.getLogger("inferd.gateway")


class RequestIds:
    """ASGI middleware around the whole application, errors included."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request under its id; its line is of level debug."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        request = scope[REQUEST_KEY] = request_id(Headers(scope=scope).get(HEADER, ""))
        answer = _Answer(send, request)
        began = time.monotonic()
        with log_fields(request=request, traceparent=Headers(scope=scope).get("traceparent", "")[:MAX_TRACEPARENT]):
            try:
                await self._app(scope, receive, answer)
            finally:
                took = (time.monotonic() - began) * 1e3
                method = scope.get("method", "WEBSOCKET")
                log.debug("%s %s: %s in %.1f ms", method, scope["path"], answer.status or "no answer", took)


class _Answer:
    """Sends an answer with the id in its headers, and notes its status."""

    def __init__(self, send: Send, request: str) -> None:
        self._send = send
        self._request = request
        self.status = 0

    async def __call__(self, message: Message) -> None:
        if message["type"] in STARTS:
            self.status = message.get("status", 101)
            changed: dict[str, Any] = {**message, "headers": list(message.get("headers", []))}
            headers = MutableHeaders(raw=changed["headers"])
            headers[HEADER] = headers[ANTHROPIC_HEADER] = self._request
            message = changed
        await self._send(message)


def request_id(given: str) -> str:
    """Return the id that a client gave, or a new one where that is empty, long, or has other characters than PLAIN."""
    return given if 0 < len(given) <= MAX_ID and PLAIN.issuperset(given) else f"req-{secrets.token_hex(8)}"
