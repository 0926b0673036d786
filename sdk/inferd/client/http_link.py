"""HTTP to one server, with errors of the SDK's own tree: httpx does the rest."""

from __future__ import annotations

import json
import math
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import anyio
import httpx

from inferd.client.event_cursor import Backoff
from inferd.protocol import InferdError, InternalError, InvalidRequest, Unavailable
from inferd.transport.answers import error_in, fields_of, json_of, untrusted
from inferd.transport.room import pause_of

TIMEOUT_S = 30.0
STREAM_TIMEOUT_S = 60.0
"""A stream that says nothing sends an empty line every 15 s."""
MAX_ANSWER = 256 << 20
"""Bytes of an answer, and of one line of a stream: twice what a server holds of one."""
AS_IT_IS = {"Accept-Encoding": "identity"}
"""No server compresses its answers, and a few bytes would become gigabytes here."""
CLOSED = "this client is closed: its `with` block has ended"
OF_CONNECTIONS = ("connections", "max_connections")
VISIBLE_ASCII = frozenset(map(chr, range(0x21, 0x7F)))
SCHEMES = {"http": "http", "https": "https", "ws": "http", "wss": "https"}


class ConnectionLost(Unavailable):
    """The connection was there, and broke: whether the server did what it was asked is not known."""


class HttpLink:
    """Requests to one server. ``patience_s``: how long a lost connection is tried again where that does nothing twice, and a
    request for which the tenant has no connection left.
    """

    def __init__(self, url: str, token: str | None, ca: str | None, patience_s: float) -> None:
        self.url = server_address(url)
        self.patience_s, self.token, self.ca = patience_s, token, ca
        if token is not None and (not isinstance(token, str) or not token or not VISIBLE_ASCII.issuperset(token)):
            raise InvalidRequest("token must be a string of visible ASCII characters")  # it stands in a header
        headers = {"Accept": "application/json", **AS_IT_IS} | (
            {} if token is None else {"Authorization": f"Bearer {token}"}
        )
        self._http = httpx.AsyncClient(
            base_url=self.url,
            headers=headers,
            timeout=TIMEOUT_S,
            verify=trusted(self.url, ca),
            trust_env=False,  # neither a proxy nor .netrc gets the token
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=16),
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        *,
        again: bool,
        wait_s: float = TIMEOUT_S,
    ) -> Any:
        """Return the JSON that the server answers within ``wait_s``. ``again``: asking twice does no harm, so a lost connection
        is tried again.

        Raises the error that the server sends, Unavailable where none answers, and ConnectionLost.
        """
        backoff, lost = Backoff(self.patience_s), False
        while True:
            try:
                return await self._once(method, path, body, headers, wait_s)
            except Unavailable as error:
                lost = lost or isinstance(error, ConnectionLost)
                pause = backoff.pause() if again and lost else None
                if pause is None:
                    raise
            await anyio.sleep(pause)

    async def _once(self, method: str, path: str, body: Any, headers: Mapping[str, str] | None, wait_s: float) -> Any:
        content = None if body is None else json.dumps(body, allow_nan=False).encode()
        kind = {} if body is None else {"Content-Type": "application/json"}
        timeout = httpx.Timeout(TIMEOUT_S, read=wait_s)
        sent = {**kind, **(headers or {})}
        async with self._answer(method, path, content=content, headers=sent, timeout=timeout) as response:
            data = await whole_body(response)
        return json_of(data)

    async def lines(self, path: str) -> AsyncGenerator[bytes]:
        """Yield the lines of a stream as they come; a last one without its end is left out. Close it with ``aclosing``."""
        parts: list[bytes] = []
        size = 0
        async with self._answer("GET", path, timeout=httpx.Timeout(TIMEOUT_S, read=STREAM_TIMEOUT_S)) as response:
            async for chunk in response.aiter_raw():
                first, *others = chunk.split(b"\n")
                parts.append(first)
                size = counted(size, first)
                if others:
                    yield b"".join(parts)
                    *whole, rest = others
                    parts, size = [rest], len(rest)
                    for line in whole:
                        yield line

    @asynccontextmanager
    async def _answer(self, method: str, path: str, **options: Any) -> AsyncIterator[httpx.Response]:
        """Send a request, and yield the answer's head. Raises what the server answers instead, and Unavailable.

        Where the tenant has too many connections, nothing was done: it is sent again, for the client's patience.
        """
        if self._http.is_closed:
            raise InvalidRequest(CLOSED)
        end = anyio.current_time() + self.patience_s
        try:
            while True:
                async with self._http.stream(method, path, **options) as response:
                    if response.status_code < 400:
                        yield response
                        return
                    error = error_of(self.url, response.status_code, await whole_body(response))
                pause = (pause_of(error) or 1.0) if error.detail.get("limit") in OF_CONNECTIONS else math.inf
                if anyio.current_time() + pause > end:
                    raise error
                await anyio.sleep(pause)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            hint = "; start one with `inferd serve`" if isinstance(error.__cause__, ConnectionRefusedError) else ""
            raise Unavailable(f"no runtime answers at {self.url}: {error}{hint or untrusted(error)}") from None
        except (httpx.TransportError, httpx.StreamError) as error:
            what = "timed out" if isinstance(error, httpx.TimeoutException) else str(error) or type(error).__name__
            raise ConnectionLost(f"the connection to {self.url} failed: {what}") from None


def server_address(url: str) -> str:
    """Return the ``http://`` or ``https://`` address of a server, also for its ``ws://`` one. Raises InvalidRequest."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme in SCHEMES and bool(parts.hostname) and parts.port != 0
    except (TypeError, ValueError, AttributeError):
        valid = False
    if not valid:
        raise InvalidRequest(f"{url!r} is no server's address: expected http://HOST:PORT")
    return f"{SCHEMES[parts.scheme]}://{parts.netloc}{parts.path.rstrip('/')}"


def trusted(url: str, ca: str | None) -> ssl.SSLContext | bool:
    """Return whose certificates count. Raises InvalidRequest for a file without certificates."""
    if not url.startswith("https://"):
        if ca is not None:
            raise InvalidRequest("ca is for https:// addresses: nothing is encrypted on an http:// one")
        return False  # nothing to verify, and loading certificates takes time
    try:
        return ssl.create_default_context(cafile=ca)
    except (OSError, TypeError) as error:
        raise InvalidRequest(f"ca: {ca!r} is no file of certificates: {error}") from None


def error_of(url: str, status: int, body: bytes) -> InferdError:
    """Return the error that an answer of the server holds."""
    try:
        return error_in(fields_of(json_of(body), error=dict)["error"])
    except InternalError:
        kind = Unavailable if status in (502, 503, 504) else InternalError  # a proxy's page, for one
        return kind(f"{url} answered {status} with something that is no inferd error")


async def whole_body(response: httpx.Response) -> bytes:
    """Return an answer's body as it was sent. Raises InternalError for one that is longer than any server's."""
    parts, size = list[bytes](), 0
    async for part in response.aiter_raw():
        parts.append(part)
        size = counted(size, part)
    return b"".join(parts)


def counted(size: int, part: bytes) -> int:
    """Return the size with one more part. Raises InternalError for more than any server's answer has."""
    if size + len(part) > MAX_ANSWER:
        raise InternalError(f"the server sent an answer of more than {MAX_ANSWER >> 20} MiB")
    return size + len(part)
