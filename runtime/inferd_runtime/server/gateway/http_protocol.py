"""uvicorn's HTTP protocol, with typed errors for what the parser refuses, such as a head that is too long."""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
from collections.abc import Iterable
from typing import Any

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from inferd.protocol import InferdError, InvalidRequest, LimitExceeded
from inferd_runtime.server.gateway.replies import error_reply

MAX_HEAD_BYTES = 32 << 10
"""Of a request's line and headers together."""
MAX_HANDSHAKE_LINE = 8000
MAX_HANDSHAKE_HEADERS = 120
"""Of a WebSocket's handshake: a little below the limits of the package websockets, which refuses without a typed error."""
CONTROL = re.compile(rb"[^\t\x20-\x7e\x80-\xff]")
"""Control characters: that package does not answer a handshake with one of them in a header."""
ABSOLUTE_FORM = re.compile(rb"https?://[^/?#]*", re.IGNORECASE)
"""Scheme and host of a request target in absolute form (RFC 9112, 3.2.2), as clients send it to a proxy. They are ignored."""
KEY_BYTES = 16
WHOLE_REQUEST = (h11.DONE, h11.MUST_CLOSE)
SINGLE_HEADERS = frozenset(
    {b"authorization", b"x-api-key", b"content-type", b"content-encoding", b"idempotency-key", b"x-session-id", b"last-event-id"}
)  # fmt: skip
"""Headers of which this server reads the first. Where one is repeated, a proxy in front may have read another one."""
ANSWERABLE = (h11.IDLE, h11.SEND_RESPONSE)
Headers = list[tuple[bytes, bytes]]


class ServerConnection(h11.Connection):
    """An h11 connection that refuses request smuggling and other versions of HTTP, and takes targets in absolute form.

    Refused is a request whose length is given in two ways (RFC 9112, 6.1), or that repeats one of ``SINGLE_HEADERS`` with
    another value: a proxy in front may have read the other one, and so see another body, or another token. h11 takes the
    beginning of HTTP/2, as gRPC sends it, for a request. ``refusal``: the reason, "" where it is not known.
    """

    refusal = ""

    def next_event(self) -> Any:
        """See h11. Raises RemoteProtocolError."""
        event = super().next_event()
        if not isinstance(event, h11.Request):
            return event
        if not event.http_version.startswith(b"1."):
            raise h11.RemoteProtocolError("another HTTP")
        names = {name for name, _ in event.headers}
        if b"transfer-encoding" in names and (b"content-length" in names or event.http_version == b"1.0"):
            raise self._refused("it has a length and chunks, or chunks in HTTP/1.0")
        twice = ambiguous_header(event.headers)
        if twice:
            raise self._refused(f"it has two headers {twice} that differ")
        if (whole := ABSOLUTE_FORM.match(event.target)) is None:
            return event
        target = event.target[whole.end() :]
        target = target if target.startswith(b"/") else b"/" + target
        return h11.Request(method=event.method, headers=event.headers, target=target, http_version=event.http_version)

    def _refused(self, why: str) -> h11.RemoteProtocolError:
        self.refusal = why
        return h11.RemoteProtocolError(why)


class TypedHttp(H11Protocol):
    """Answers what h11 refuses with a typed error, and closes the connection."""

    def __init__(self, config: Config, server_state: ServerState, app_state: dict[str, Any]) -> None:
        super().__init__(config, server_state, app_state)
        self.conn = ServerConnection(h11.SERVER, MAX_HEAD_BYTES)

    def send_400_response(self, msg: str) -> None:
        """See uvicorn: called for what h11 refuses."""
        if len(self.conn.trailing_data[0]) > MAX_HEAD_BYTES:
            text = f"a request's line and headers may have {MAX_HEAD_BYTES} bytes together"
            self._refuse(LimitExceeded(text, limit="head_bytes", value=MAX_HEAD_BYTES, raise_with="fewer headers"))
        else:
            assert isinstance(self.conn, ServerConnection)
            why = self.conn.refusal and f": {self.conn.refusal}"
            self._refuse(InvalidRequest(f"this is no HTTP/1.1 request{why}"))

    def eof_received(self) -> bool:  # type: ignore[override]  # uvicorn's own always closes
        """Return True, which keeps our side open, while the answer to a complete request is still to be sent."""
        if self.cycle is None or self.cycle.response_complete or self.conn.their_state not in WHOLE_REQUEST:
            return False
        self.cycle.keep_alive = False
        return True

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Begin a WebSocket, if its handshake is one."""
        problem = handshake_problem(event.method, self.headers, event.http_version)
        if problem:
            self._refuse(InvalidRequest(f"this is no handshake of a WebSocket: {problem}"))
            return
        super().handle_websocket_upgrade(event)
        behind, protocol = self.conn.trailing_data[0], self.transport.get_protocol()
        if behind and not self.transport.is_closing() and isinstance(protocol, asyncio.Protocol):
            protocol.data_received(behind)  # frames that came in the same read as the handshake

    def _refuse(self, error: InferdError) -> None:
        if self.conn.our_state not in ANSWERABLE:
            self.transport.abort()  # the answer to an earlier request is half sent
            return
        if self.cycle is not None:
            self.cycle.disconnected = True  # drop what the application answers to the request with the broken body
        answer = error_reply(error)
        headers = [*answer.raw_headers, (b"connection", b"close")]
        body = b"" if self.conn._request_method == b"HEAD" else bytes(answer.body)
        for part in (
            h11.Response(status_code=answer.status_code, headers=headers),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(part) or b"")
        self.transport.close()


def ambiguous_header(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return which of ``SINGLE_HEADERS`` has two different values; "" if none has. Names are in lower case."""
    values: dict[bytes, bytes] = {}
    for name, value in headers:
        if name in SINGLE_HEADERS and values.setdefault(name, value) != value:
            return name.decode()
    return ""


def handshake_problem(method: bytes, headers: Headers, version: bytes = b"1.1") -> str:
    """Return what is wrong with a WebSocket's handshake (RFC 6455, 4.2.1), "" for nothing. Names of headers are in lower case."""
    found = dict(headers)
    if method != b"GET":
        return "its method must be GET"
    if version < b"1.1":  # a proxy of HTTP/1.0 does not know Upgrade: it would take frames for the next request
        return "it must be of HTTP/1.1"
    if found.get(b"sec-websocket-version") != b"13":
        return "Sec-WebSocket-Version must be 13"
    names = [name for name, _ in headers]
    if names.count(b"sec-websocket-key") != 1 or not _is_key(found[b"sec-websocket-key"]):
        return f"there must be one Sec-WebSocket-Key: {KEY_BYTES} bytes in base64"
    if b"transfer-encoding" in found or found.get(b"content-length", b"0") != b"0":
        return "it has a body"
    if len(headers) > MAX_HANDSHAKE_HEADERS:
        return f"it has more than {MAX_HANDSHAKE_HEADERS} headers"
    if any(len(name) + len(value) > MAX_HANDSHAKE_LINE for name, value in headers):
        return f"a header has more than {MAX_HANDSHAKE_LINE} bytes"
    if any(CONTROL.search(value) for _, value in headers):
        return "a header has control characters"
    return ""


def _is_key(value: bytes) -> bool:
    try:
        return len(base64.b64decode(value, validate=True)) == KEY_BYTES
    except binascii.Error:
        return False
