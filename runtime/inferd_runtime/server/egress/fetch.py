"""One fetch: the request, redirects, and the response's body, in a task of its own that waits for the reader."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import httpcore

from inferd.protocol import Cancelled, Forbidden, InferdError, InternalError, InvalidRequest, LimitExceeded, Unavailable
from inferd.protocol.http import BodyChunk, ResponseHead
from inferd_runtime.server.egress.chunk_slot import ChunkSlot
from inferd_runtime.server.egress.connecting import CheckedBackend, ConnectRules
from inferd_runtime.server.egress.decoding import ACCEPTED, CompressedBody, PlainBody, body_decoder
from inferd_runtime.server.egress.messages import FetchOrder, HeaderLine
from inferd_runtime.server.egress.origins import read_address, read_pattern
from inferd_runtime.server.egress.redaction import Redactor
from inferd_runtime.server.egress.redirects import Hop, location_of, next_hop
from inferd_runtime.server.egress.resolver import Resolver
from inferd_runtime.server.egress.rules import EgressRules, read_range

CONNECT_SECONDS = 10.0
IDLE_SECONDS = 60.0
"""How long a server may be silent, or not read what it is sent."""
MOST_HEADERS = 200
SOON_SECONDS = 0.003
"""How long a response's head waits for the beginning of its body, which is often in the same packet."""
USER_AGENT = "inferd"
UNFRAMED = frozenset({"transfer-encoding", "connection", "keep-alive"})
"""Headers about how the body came, which is not how the program gets it."""
FAILURES: Sequence[tuple[type[Exception], str]] = (
    (httpcore.ConnectTimeout, "the server does not answer"),
    (httpcore.ConnectError, "no connection to the server"),
    (httpcore.TimeoutException, "the server was silent for too long"),
    (httpcore.NetworkError, "the connection was lost"),
    (httpcore.ProtocolError, "the server does not speak HTTP as it should"),
    (ssl.SSLError, "no connection to the server"),
)


class Fetch:
    """A fetch that the gateway let through. :meth:`run` does it; the other methods are for the reader of its response."""

    def __init__(self, order: FetchOrder, resolver: Resolver, trusted: ssl.SSLContext) -> None:
        self._order = order
        self._trusted = trusted
        self._resolver = resolver
        self._rules = EgressRules(tuple(map(read_pattern, order.allowed)), tuple(map(read_range, order.private)))
        self._declared = None if order.declared is None else tuple(map(read_pattern, order.declared))
        self._redactor = Redactor(line.value.removeprefix(line.prefix) for line in order.headers if line.secret)
        self._upload = ChunkSlot()
        self._pieces = ChunkSlot()
        self._head: ResponseHead | None = None
        self._head_there = anyio.Event()
        self._error: InferdError | None = None
        self._scope = anyio.CancelScope()
        self._delivered = 0

    async def run(self) -> None:
        """Send the request and read the response. Never raises: the reader gets the error."""
        try:
            with self._scope, anyio.fail_after(self._order.timeout_s):
                await self._follow(Hop(read_address(self._order.url), self._order.method, self._headers(), True))
        except InferdError as error:
            self._fail(error)
        except TimeoutError:
            seconds = self._order.timeout_s
            text = f"the request and its response took more than {seconds:g} s"
            self._fail(LimitExceeded(text, limit="timeout", value=seconds, raise_with="timeout="))
        except (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError, OSError, ValueError) as error:
            self._fail(_failure(error))
        except Exception as error:  # noqa: BLE001 - the boundary of one fetch: a bug costs it, and no other tenant's
            self._fail(InternalError(f"the request failed: {type(error).__name__}"))
        finally:
            if self._scope.cancel_called:
                self._fail(Cancelled("the request was given up"))
            self._head_there.set()
            self._upload.close()
            self._pieces.close()

    def give_up(self) -> None:
        """End it."""
        self._scope.cancel()

    async def head(self) -> ResponseHead:
        """Wait for the response's head. Raises what went wrong."""
        await self._head_there.wait()
        if self._head is None:
            raise self._error or Unavailable("the request has ended")
        with anyio.move_on_after(SOON_SECONDS):
            await self._pieces.wait_for_chunk()
        chunk = self._pieces.take_now() or (b"", False)
        return ResponseHead(
            self._order.fetch, self._head.status, self._head.url, self._head.headers, chunk[0], chunk[1]
        )

    async def write(self, data: bytes, last: bool) -> None:
        """Send a piece of the request's body. Raises what went wrong."""
        if not self._order.streams:
            raise InvalidRequest("this request was sent with its body")
        if (data or last) and not await self._upload.put(data, last=last):
            raise self._error or InvalidRequest("the server has answered, or the body was complete: it takes no more")

    async def read(self) -> BodyChunk:
        """Return the next piece of the response's body. Raises what went wrong."""
        chunk, last = await self._pieces.take()
        if last and not chunk and self._error is not None:
            raise self._error
        return BodyChunk(chunk, last)

    def _fail(self, error: InferdError) -> None:
        if self._error is None:
            error.message = self._redactor.clean_text(error.message.encode(errors="replace").decode())
            self._error = error

    def _headers(self) -> tuple[HeaderLine, ...]:
        names = {line.name.lower() for line in self._order.headers}
        own = () if "user-agent" in names else (HeaderLine("User-Agent", USER_AGENT),)
        return (HeaderLine("Accept-Encoding", ACCEPTED), *own, *self._order.headers)

    async def _follow(self, hop: Hop) -> None:
        """Send a request, and those that redirects ask for."""
        for left in range(self._order.redirects, -1, -1):
            async with self._response(hop) as response:
                location = location_of(response.status, response.headers)
                if location is None or (left == 0 and self._order.redirects == 0):
                    return await self._deliver(hop, response)
                if left == 0:
                    raise LimitExceeded(
                        f"the server redirects more than {self._order.redirects} times",
                        limit="redirects", value=self._order.redirects, raise_with="redirects=",
                    )  # fmt: skip
                if self._redactor.contains(location):
                    raise Forbidden("the server redirects to an address with a secret in it")
                hop = next_hop(hop, response.status, location)
                if hop.with_body and self._order.streams:
                    raise InvalidRequest("the server redirects a request whose body was sent in pieces: send it again")

    @asynccontextmanager
    async def _response(self, hop: Hop) -> AsyncIterator[httpcore.Response]:
        """Send one request on a connection of its own, which is closed at the end."""
        origin = hop.address.origin
        self._rules.check(origin, self._declared)
        backend = CheckedBackend(self._resolver, ConnectRules(self._order.tenant, self._rules.private))
        where = httpcore.Origin(origin.scheme.encode(), origin.host.encode(), origin.port)
        async with httpcore.AsyncHTTPConnection(
            where, ssl_context=self._trusted if origin.scheme == "https" else None, network_backend=backend
        ) as connection:
            response = await connection.handle_async_request(self._request(hop))
            try:
                if len(response.headers) > MOST_HEADERS:
                    raise LimitExceeded("the server sends too many headers", limit="http_headers", value=MOST_HEADERS)
                assert backend.stream is not None
                backend.stream.allow_body(self._order.most_bytes)
                yield response
            finally:
                with anyio.move_on_after(1, shield=True):
                    await response.aclose()

    def _request(self, hop: Hop) -> httpcore.Request:
        origin = hop.address.origin
        headers = [("Host", origin.authority), *((line.name, line.value) for line in hop.headers)]
        body = self._body(hop, headers)
        url = httpcore.URL(
            scheme=origin.scheme.encode(),
            host=origin.host.encode(),
            port=origin.port,
            target=hop.address.target.encode(),
        )
        waits = {"connect": CONNECT_SECONDS, "read": IDLE_SECONDS, "write": IDLE_SECONDS, "pool": CONNECT_SECONDS}
        return httpcore.Request(hop.method, url, headers=headers, content=body, extensions={"timeout": waits})

    def _body(self, hop: Hop, headers: list[tuple[str, str]]) -> bytes | AsyncIterator[bytes]:
        """Return the body to send, with its framing added to the headers."""
        if self._order.streams and hop.with_body:
            headers.append(("Transfer-Encoding", "chunked"))
            return self._uploaded()
        body = self._order.body if hop.with_body else b""
        if body or hop.method in ("POST", "PUT", "PATCH"):
            headers.append(("Content-Length", str(len(body))))
        return body

    async def _uploaded(self) -> AsyncIterator[bytes]:
        last = False
        while not last:
            data, last = await self._upload.take()
            if data:
                yield data

    async def _deliver(self, hop: Hop, response: httpcore.Response) -> None:
        """Hand over the head, then the body as fast as it is read."""
        headers = [[name.decode("latin-1").lower(), value.decode("latin-1")] for name, value in response.headers]
        encoding = ", ".join(value for name, value in headers if name == "content-encoding")
        decoder = body_decoder(encoding)
        if decoder is None:
            if self._redactor.active:  # a secret could come back in it unseen
                raise Unavailable("the server answers in an encoding that it was not asked for")
            decoder = PlainBody()
        elif encoding:
            headers = [one for one in headers if one[0] not in ("content-encoding", "content-length")]
        shown = [[name, self._redactor.clean_text(value)] for name, value in headers if name not in UNFRAMED]
        url = self._redactor.clean_text(str(hop.address))
        self._head = ResponseHead(self._order.fetch, response.status, url, shown)
        self._upload.close()
        self._head_there.set()
        await self._deliver_body(response, decoder, _length(headers))

    async def _deliver_body(
        self, response: httpcore.Response, decoder: PlainBody | CompressedBody, length: int | None
    ) -> None:
        async for data in response.aiter_stream():
            await anyio.lowlevel.checkpoint()  # thousands of chunks that mean nothing come in one read
            for piece in decoder.feed(data):
                self._delivered += len(piece)
                if self._delivered > self._order.most_bytes:
                    raise _too_much(self._order.most_bytes)
                whole = self._delivered == length and not self._redactor.active
                clean = self._redactor.feed(piece)
                if (clean or whole) and not await self._pieces.put(clean, last=whole):
                    return
        decoder.end()
        await self._pieces.put(self._redactor.end(), last=True)


def _length(headers: Sequence[Sequence[str]]) -> int | None:
    """Return the length of a body that is not compressed, where the server says it."""
    text = next((value for name, value in headers if name == "content-length"), "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else None


def _too_much(most: int) -> LimitExceeded:
    text = f"the response's body has more than {most} bytes"
    return LimitExceeded(text, limit="http_body_bytes", value=most, raise_with="the server's --http-body-bytes")


def _failure(error: Exception) -> InferdError:
    for kind, text in FAILURES:
        if isinstance(error, kind):
            return Unavailable(f"{text}: {error}" if str(error) else text)
    return Unavailable(f"the request failed: {error}")
