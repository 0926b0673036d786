"""A script's connection to a runtime: protocol operations as msgpack maps over one WebSocket.

Request ``{"t": ticket, "op": name, "a": arguments}``; reply ``{"t": ticket, "ok": {...}}`` or
``{"t": ticket, "err": {code, message, detail}}``; ``{"t": ticket, "op": "cancel", "a": {}}`` asks to drop a request. A reply with
``"r": true`` brings what nobody else gets: ``{"t": ticket, "op": "received", "a": {}}`` says that it was not lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import ssl
from types import TracebackType
from typing import Any

import msgpack  # type: ignore[import-untyped]
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, ConnectionClosedOK, InvalidHandshake, InvalidStatus, InvalidURI
from websockets.http11 import Response
from websockets.typing import Subprotocol

from inferd.protocol import (
    MAX_SCRIPT_MESSAGE,
    ErrorInfo,
    InferdError,
    InternalError,
    InvalidRequest,
    Unauthorized,
    Unavailable,
    reply_from_plain,
    set_fields,
)
from inferd.transport import restore_transport, use_transport
from inferd.transport.answers import untrusted
from inferd.transport.room import CallRoom

PATH = "/v1/session"
SUBPROTOCOL = Subprotocol("inferd.v1")
MAX_MESSAGE_BYTES = 64 << 20
KEEPALIVE_S = 20.0
CLOSE_S = 5.0
OTHER_LOOP = (
    "this connection belongs to another event loop: call inferd.connect in this one, or hand the coroutine to that one with "
    "asyncio.run_coroutine_threadsafe"
)
VISIBLE_ASCII = frozenset(map(chr, range(0x21, 0x7F)))


class open_websocket(connect):
    """A connection to the address that was given and to no other: a redirect is an answer like any refusal."""

    def process_redirect(self, exc: Exception) -> Exception:
        """Follow none."""
        return exc


class Connection:
    """One session with a runtime, made by :func:`inferd.connect`. An async context manager, entered once.

    ``session``: in a cluster it goes to the same runtime as other requests with that ``X-Session-Id``.
    """

    def __init__(self, url: str, token: str | None, ca: str | None = None, session: str = "") -> None:
        if isinstance(url, str) and url.startswith(("http://", "https://")):  # as `inferd serve` prints it
            url = "ws" + url.removeprefix("http")
        if not isinstance(url, str) or not url.startswith(("ws://", "wss://")):
            raise InvalidRequest(f"url must start with http://, https://, ws:// or wss://, not {url!r}")
        if token is not None and (not isinstance(token, str) or not token or not VISIBLE_ASCII.issuperset(token)):
            raise InvalidRequest("token must be a string of visible ASCII characters")  # it stands in a header
        self._url = url.rstrip("/") + PATH
        self._token = token
        self._session = session
        self._trusted = _trusted(url, ca)
        self._room = CallRoom()
        self._link: Link | None = None
        self._restore: Any = None

    async def __aenter__(self) -> Connection:
        if self._link is not None:
            raise InvalidRequest("a connection is entered once: call inferd.connect() again")
        self._link = Link(await _open(self._url, self._token, self._trusted, self._session))
        self._restore = use_transport(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        restore_transport(self._restore)
        if self._link is not None:
            await self._link.close()

    async def call(self, request: Any) -> Any:
        """Send one operation and wait for its reply; see :class:`inferd.transport.Transport`."""
        if self._link is None:
            raise Unavailable("not connected yet: use `async with inferd.connect(...)`")
        if asyncio.get_running_loop() is not self._link.loop:  # nobody would wake who waits
            raise InvalidRequest(OTHER_LOOP)
        async with self._room.of(request):
            reply = await self._link.request(request.op, set_fields(request))
        try:
            return reply_from_plain(request.reply, reply)
        except (TypeError, ValueError, AttributeError) as error:
            raise InternalError(f"the runtime's reply to {request.op} is not of its protocol: {error}") from error


class Link:
    """An open WebSocket and the requests that wait for replies on it."""

    def __init__(self, socket: ClientConnection) -> None:
        self.loop = asyncio.get_running_loop()
        self._socket = socket
        self._tickets = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._notices: set[asyncio.Task[None]] = set()
        self._receipts: set[int] = set()
        self._lost: InferdError | None = None
        self._reader = asyncio.create_task(self._read(), name="inferd connection")

    async def request(self, op: str, args: dict[str, Any]) -> dict[str, Any]:
        """Send a request and wait for its reply. Raises what the runtime answered, and Unavailable once it is gone."""
        if self._lost is not None:
            raise self._again(self._lost)
        ticket = next(self._tickets)
        future: asyncio.Future[dict[str, Any]] = self.loop.create_future()
        self._waiting[ticket] = future
        try:
            await self._send({"t": ticket, "op": op, "a": args})
            reply = await future
            if ticket in self._receipts:
                self._notify(ticket, "received")
            return reply
        except asyncio.CancelledError:
            self._notify(ticket, "cancel")
            raise
        finally:
            self._receipts.discard(ticket)
            self._waiting.pop(ticket, None)
            if future.done() and not future.cancelled():
                future.exception()  # retrieved, even where sending failed first

    async def close(self) -> None:
        """Close the socket and end the tasks. Requests that still wait raise Unavailable."""
        if self._notices:
            await asyncio.wait(self._notices, timeout=CLOSE_S)
        for task in self._notices:
            task.cancel()
        await asyncio.gather(*self._notices, return_exceptions=True)
        await self._socket.close()
        await self._reader

    async def _send(self, message: dict[str, Any]) -> None:
        try:
            data: bytes = msgpack.packb(message)
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidRequest(f"{message['op']}: an argument cannot be sent: {error}") from error
        if len(data) > MAX_SCRIPT_MESSAGE:
            raise InvalidRequest(
                f"{message['op']}: the request takes {len(data)} bytes; {MAX_SCRIPT_MESSAGE} are allowed"
            )
        try:
            await self._socket.send(data)
        except ConnectionClosed as error:
            raise self._again(self._lost or _lost(error)) from error

    def _notify(self, ticket: int, op: str) -> None:
        if self._lost is None:
            task = asyncio.create_task(self._send_notice(ticket, op), name=f"inferd {op}")
            self._notices.add(task)
            task.add_done_callback(self._notices.discard)

    async def _send_notice(self, ticket: int, op: str) -> None:
        with contextlib.suppress(Unavailable):  # the runtime cancels everything of a lost connection by itself
            await self._send({"t": ticket, "op": op, "a": {}})

    async def _read(self) -> None:
        error: InferdError = Unavailable("the connection was closed")
        try:
            while True:
                self._dispatch(await self._socket.recv())
        except ConnectionClosed as closed:
            error = _lost(closed)
        except InternalError as broken:
            error = broken
        finally:
            self._fail_all(error)
        await self._socket.close()

    def _dispatch(self, data: str | bytes) -> None:
        try:
            message = msgpack.unpackb(data)
            ticket, problem = message["t"], message.get("err")
            error = None if problem is None else ErrorInfo.of(problem)
            reply = {} if error is not None else dict(message["ok"])
            future = self._waiting.get(ticket)
        except (ValueError, TypeError, KeyError, AttributeError, msgpack.UnpackException) as broken:
            raise InternalError(f"the runtime sent a message that is not of its protocol: {broken!r}") from broken
        if future is None or future.done():
            return  # a cancelled request is answered too
        if message.get("r"):
            self._receipts.add(ticket)
        if error is not None:
            future.set_exception(error.to_exception())
        else:
            future.set_result(reply)

    def _fail_all(self, error: InferdError) -> None:
        self._lost = error
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(self._again(error))

    @staticmethod
    def _again(error: InferdError) -> InferdError:
        return type(error)(error.message)  # one exception object per raise: tracebacks do not pile up


def _trusted(url: str, ca: str | None) -> ssl.SSLContext | None:
    """Return the context for a ``wss://`` address. Raises InvalidRequest for a file without certificates."""
    if not url.startswith("wss://"):
        if ca is not None:
            raise InvalidRequest("ca is for wss:// addresses: nothing is encrypted on a ws:// one")
        return None
    try:
        return ssl.create_default_context(cafile=ca)
    except (OSError, TypeError) as error:
        raise InvalidRequest(f"ca: {ca!r} is no file of certificates: {error}") from error


async def _open(url: str, token: str | None, trusted: ssl.SSLContext | None, session: str) -> ClientConnection:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    if session:
        headers["X-Session-Id"] = session
    try:
        socket = await open_websocket(
            url,
            subprotocols=[SUBPROTOCOL],
            additional_headers=headers,
            ssl=trusted,
            proxy=None,  # of the environment: it would get the token
            compression=None,
            max_size=MAX_MESSAGE_BYTES,
            ping_interval=KEEPALIVE_S,
            ping_timeout=KEEPALIVE_S,
            close_timeout=CLOSE_S,
        )
    except ssl.SSLError as error:  # one that fails to verify a certificate is a ValueError too
        raise Unavailable(f"no runtime that can be trusted answers at {url}: {error}{untrusted(error)}") from error
    except (InvalidURI, ValueError) as error:
        raise InvalidRequest(f"url: {error}") from error
    except InvalidStatus as error:
        raise _refused(url, error.response, token) from error
    except (InvalidHandshake, OSError, TimeoutError) as error:
        raise Unavailable(f"no runtime answers at {url}: {error}") from error
    if socket.subprotocol != SUBPROTOCOL:
        await socket.close()
        raise Unavailable(f"what answers at {url} does not speak {SUBPROTOCOL}")
    return socket


def _refused(url: str, response: Response, token: str | None) -> InferdError:
    if response.status_code in (401, 403):
        return Unauthorized(
            "the runtime wants a token: pass token= (`inferd serve` says at its start which file has it)"
            if token is None
            else "the runtime refused the token"
        )
    try:
        why = f": {json.loads(response.body or b'')['error']['message']}"
    except (ValueError, TypeError, LookupError):  # it is no runtime
        why = ""
    return Unavailable(f"what answers at {url} refused the connection with HTTP status {response.status_code}{why}")


def _lost(error: ConnectionClosed) -> Unavailable:
    if isinstance(error, ConnectionClosedOK) and not error.rcvd_then_sent:
        return Unavailable("the connection was closed: its `async with inferd.connect(...)` block has ended")
    return Unavailable(f"the connection to the runtime was lost: {error}")
