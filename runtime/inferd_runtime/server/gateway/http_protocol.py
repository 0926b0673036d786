"""uvicorn's HTTP protocol with typed errors for what never becomes a request: heads that are too long, or none at all."""

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
"""A little less than the library for WebSockets takes: what it refuses it refuses without a type."""
CONTROL = re.compile(rb"[^\t\x20-\x7e\x80-\xff]")
"""To a header with one of these that library does not answer at all."""
WHOLE_URL = re.compile(rb"https?://[^/?#]*", re.IGNORECASE)
"""What stands before a path where a client takes the server for a proxy: one host is served, so whose name it is says nothing."""
KEY_BYTES = 16
WHOLE_REQUEST = (h11.DONE, h11.MUST_CLOSE)
HAD_ONCE = frozenset(
    {b"authorization", b"x-api-key", b"content-type", b"content-encoding", b"idempotency-key", b"x-session-id", b"last-event-id"}
)  # fmt: skip
"""Headers of which the first would count here, and another one for whoever passed the request on."""
ANSWERABLE = (h11.IDLE, h11.SEND_RESPONSE)
Headers = list[tuple[bytes, bytes]]


class ServerConnection(h11.Connection):
    """Refuses a request that says in two ways where its body ends (RFC 9112, 6.1), or who sends it; takes whole URLs as targets.

    A proxy before this server may go by the other way: then what is a body to it would be the next request here, or whom it
    has let in somebody else. What begins HTTP/2, as gRPC does, looks like a request, and was told that it has no token.
    ``refusal``: why, where that is known.
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
        if (whole := WHOLE_URL.match(event.target)) is None:
            return event
        target = event.target[whole.end() :]
        target = target if target.startswith(b"/") else b"/" + target
        return h11.Request(method=event.method, headers=event.headers, target=target, http_version=event.http_version)

    def _refused(self, why: str) -> h11.RemoteProtocolError:
        self.refusal = why
        return h11.RemoteProtocolError(why)


class TypedHttp(H11Protocol):
    """Answers what is no request with an error in the one shape of errors, and closes the connection."""

    def __init__(self, config: Config, server_state: ServerState, app_state: dict[str, Any]) -> None:
        super().__init__(config, server_state, app_state)
        self.conn = ServerConnection(h11.SERVER, MAX_HEAD_BYTES)

    def send_400_response(self, msg: str) -> None:
        """Refuse what the parser does not take."""
        if len(self.conn.trailing_data[0]) > MAX_HEAD_BYTES:
            text = f"a request's line and headers may have {MAX_HEAD_BYTES} bytes together"
            self._refuse(LimitExceeded(text, limit="head_bytes", value=MAX_HEAD_BYTES, raise_with="fewer headers"))
        else:
            assert isinstance(self.conn, ServerConnection)
            why = self.conn.refusal and f": {self.conn.refusal}"
            self._refuse(InvalidRequest(f"this is no HTTP/1.1 request{why}"))

    def eof_received(self) -> bool:  # type: ignore[override]  # uvicorn's own closes always
        """Return True, which leaves our side open, while the answer to a whole request is to come: it is the last one."""
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
        if (
            self.conn.our_state not in ANSWERABLE
        ):  # an answer to an earlier request is on its way: it cannot be taken back
            self.transport.abort()
            return
        if self.cycle is not None:
            # What the application answers to the request whose body went wrong goes nowhere.
            self.cycle.disconnected = True
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
    """Return the name of a header that must stand once and has two values; "" if there is none. Names are in lower case."""
    values: dict[bytes, bytes] = {}
    for name, value in headers:
        if name in HAD_ONCE and values.setdefault(name, value) != value:
            return name.decode()
    return ""


def handshake_problem(method: bytes, headers: Headers, version: bytes = b"1.1") -> str:
    """Return what is wrong with a WebSocket's handshake (RFC 6455, 4.2.1), "" for nothing. Names of headers are in lower case."""
    found = dict(headers)
    if method != b"GET":
        return "its method must be GET"
    if version < b"1.1":  # what speaks it in between knows no Upgrade, and takes frames for the next request
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
