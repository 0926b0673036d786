"""Requests to servers elsewhere, as far as the operator and the program's own manifest allow them.

    response = await http.fetch("https://api.example.com/v1/items", headers={"Authorization": http.secret("example")})
    async for chunk in response.stream(): ...

A program says in ``[tool.inferd]`` whom it needs, ``http = ["https://api.example.com"]``; the operator says in ``--http-allow``
whom its tenant may reach. Both have to agree, for every redirect as well. The same calls work in scripts, which have no manifest.
Any number may be fetched at once: beyond MAX_OPEN_FETCHES they wait for one another.
"""

from __future__ import annotations

import asyncio
import contextlib
import json as json_module
import threading
import weakref
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from inferd.calls.arguments import checked_mapping
from inferd.program.json_values import to_json_value
from inferd.protocol import InferdError, InvalidRequest, LimitExceeded, NotFound, ProgramError, Unavailable
from inferd.protocol.http import (
    DEFAULT_TIMEOUT,
    MAX_BODY,
    MAX_OPEN_FETCHES,
    MAX_TIMEOUT,
    MAX_WRITE,
    AwaitHead,
    BeginFetch,
    CloseFetch,
    HeaderField,
    ReadBody,
    ResponseHead,
    StartFetch,
    WriteBody,
    check_fetch,
)
from inferd.protocol.ranges import check_number
from inferd.protocol.texts import checked_text
from inferd.transport import Port, current_port

Body = bytes | bytearray | str | AsyncIterable[bytes] | None


@dataclass(frozen=True)
class Secret:
    """A secret of the operator's by its name; only a header's value may be one. The program never sees its text."""

    name: str
    prefix: str = ""


def secret(name: str, prefix: str = "") -> Secret:
    """Return the value of a header that the runtime fills in: ``prefix`` (as ``"Bearer "``) and the secret of this name.

    It goes to the origins that the operator bound it to, and to no redirect elsewhere; where a response repeats it, the program
    reads asterisks.
    """
    return Secret(name, prefix)


class Response:
    """A response whose head has come. Its body is read once: by :meth:`stream`, :meth:`bytes`, :meth:`text` or :meth:`json`.

    ``headers`` have names in small letters; of one that came several times the values are joined with ``", "``, and apart in
    ``header_pairs``. ``url`` is the address that answered, after redirects. Leave the body unread only after :meth:`close`, or
    use ``async with``.
    """

    def __init__(self, port: Port, head: ResponseHead, places: _Places) -> None:
        self.status = head.status
        self.url = head.url
        self.header_pairs = [(name, value) for name, value in head.headers]
        self.headers: dict[str, str] = {}
        for name, value in head.headers:
            self.headers[name] = f"{self.headers[name]}, {value}" if name in self.headers else value
        self._port = port
        self._fetch = head.fetch
        self._first = head.chunk
        self._last = head.last
        self._begun = False
        self._places = places
        self._give_up = weakref.finalize(self, _abandon, port, head.fetch, places)
        if head.last:
            self._over()

    @property
    def ok(self) -> bool:
        """True for a status of 200 to 299."""
        return 200 <= self.status < 300

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes; the server is read no faster than this is.

        Raises Unavailable for a body that is cut off, LimitExceeded for one that takes too long or has too many bytes.
        """
        if self._begun:
            raise InvalidRequest("the body of this response was read already")
        self._begun = True
        if self._first:
            chunk, self._first = self._first, b""
            yield chunk
        while not self._last:
            try:
                piece = await self._port.transport.call(ReadBody(self._fetch))
            except InferdError:
                self._give_up()
                raise
            self._last = piece.last
            if piece.last:
                self._over()
            if piece.data:
                yield piece.data

    async def bytes(self) -> bytes:
        """Return the whole body."""
        return b"".join([chunk async for chunk in self.stream()])

    async def text(self) -> str:
        """Return the whole body as text, in the encoding that the server names, else UTF-8. Replaces what is no text."""
        return (await self.bytes()).decode(self._encoding(), "replace")

    async def json(self) -> Any:
        """Return the value of the whole body. Raises ProgramError for one that is not JSON."""
        data = await self.bytes()
        try:
            return json_module.loads(data)
        except ValueError as error:
            raise ProgramError(f"the response of {self.url} is not JSON: {error}") from None

    async def close(self) -> None:
        """Give the rest of the body up."""
        if self._give_up.alive:
            self._last = True
            self._over()
            await self._port.transport.call(CloseFetch(self._fetch))

    async def __aenter__(self) -> Response:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _over(self) -> None:
        if self._give_up.detach() is not None:
            self._places.leave()

    def _encoding(self) -> str:
        name = self.headers.get("content-type", "").lower().partition("charset=")[2].partition(";")[0].strip('" ')
        try:
            "".encode(name)
        except (LookupError, ValueError):
            return "utf-8"
        return name


async def fetch(
    url: str,
    *,
    method: str = "GET",
    headers: Mapping[str, str | Secret] | None = None,
    body: Body = None,
    json: Any = None,
    timeout: float = DEFAULT_TIMEOUT,  # noqa: ASYNC109
    redirects: int = 5,
) -> Response:
    """Send a request, and return the response once its head is there.

    Args:
        url: with http:// or https://.
        method: GET, HEAD, POST, PUT, PATCH, DELETE or OPTIONS.
        headers: names and values; a value may be :func:`secret`.
        body: bytes, text (sent as UTF-8), or an async iterator of bytes, which is read no faster than the server reads it.
        json: a value that is sent as JSON instead of ``body``.
        timeout: seconds for all of it, the response's body included.
        redirects: how many are followed; 0 returns a redirect as it is.

    Raises Forbidden for what operator or manifest do not allow, and for addresses that are not public; Unavailable where
    nobody answers; LimitExceeded with the limit's name; InvalidRequest for what is no URL or header. Cancelling the task ends
    the request.
    """
    checked_text("url", url)
    check_number("timeout", timeout, 0, MAX_TIMEOUT)
    fields = [_field(name, value) for name, value in checked_mapping("headers", headers).items()]
    if json is not None:
        if body is not None:
            raise InvalidRequest("a request has a body or json, not both")
        body = json_module.dumps(to_json_value(json, "json"), allow_nan=False)
        if not any(field.name.lower() == "content-type" for field in fields):
            fields.append(HeaderField("Content-Type", "application/json"))
    if body is None or isinstance(body, (bytes, bytearray, str)):
        data = body.encode() if isinstance(body, str) else bytes(body or b"")
        if len(data) <= MAX_BODY:
            return await _answered(StartFetch(method, url, fields, data, float(timeout), redirects))
        body = _whole(data)
    if not isinstance(body, AsyncIterable):
        raise InvalidRequest(
            f"body must be bytes, text or an async iterator of bytes, not {type(body).__name__}: use json="
        )
    return await _answered(BeginFetch(method, url, fields, float(timeout), redirects), body)


async def _answered(request: StartFetch | BeginFetch, body: AsyncIterable[bytes] | None = None) -> Response:
    """Send a request once there is a place for it. Raises LimitExceeded if there is none for as long as it may take."""
    check_fetch(request)
    port = current_port()
    if _Places not in port.shared:
        port.shared[_Places] = _Places()
    places: _Places = port.shared[_Places]
    await places.take(request.timeout_s)
    try:
        await port.release_abandoned()
        head = await (port.transport.call(request) if body is None else _uploaded(port, request, body))
    except BaseException:
        places.leave()
        raise
    return Response(port, head, places)


class _Places:
    """Those of a port's requests that may be open at once, so that none is refused for others that will be over."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(MAX_OPEN_FETCHES)
        self._thread = threading.get_ident()
        self._loop: asyncio.AbstractEventLoop | None = None
        with contextlib.suppress(RuntimeError):  # none runs yet while a program's file is read, and that may fetch, too
            self._loop = asyncio.get_running_loop()

    async def take(self, seconds: float) -> None:
        """Wait for a place. Raises LimitExceeded if that takes too long: responses that are not read keep theirs."""
        if not self._free.locked():
            await self._free.acquire()  # at once, without a loop
            return
        try:
            async with asyncio.timeout(seconds):
                await self._free.acquire()
        except TimeoutError:
            raise too_many_open() from None

    def leave(self) -> None:
        """Give a place back. Finalizers call this, in any thread."""
        if self._loop is None or threading.get_ident() == self._thread:
            self._free.release()
        else:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._free.release)


def too_many_open() -> LimitExceeded:
    """Return the error of a request that has no place."""
    text = f"{MAX_OPEN_FETCHES} requests of this program are open already"
    return LimitExceeded(
        text, limit="open_fetches", value=MAX_OPEN_FETCHES, raise_with="reading or closing their responses"
    )


def _abandon(port: Port, number: int, places: _Places) -> None:
    port.abandon([CloseFetch(number)])
    places.leave()


async def _uploaded(port: Port, begin: StartFetch | BeginFetch, body: AsyncIterable[bytes]) -> ResponseHead:
    number = (await port.transport.call(begin)).fetch
    try:
        failed = await _write(port, number, body)
        try:
            head: ResponseHead = await port.transport.call(AwaitHead(number))
            return head
        except NotFound as error:  # the process that fetches ended, and the next one does not know the request
            raise failed or error from None
    except BaseException:
        port.abandon([CloseFetch(number)])
        raise


async def _write(port: Port, number: int, body: AsyncIterable[bytes]) -> Unavailable | None:
    """Send the body. Returns what ended that early, where the response's head may tell more of it."""
    try:
        async for piece in body:
            for start in range(0, len(piece), MAX_WRITE):
                await port.transport.call(WriteBody(number, bytes(piece[start : start + MAX_WRITE])))
        await port.transport.call(WriteBody(number, b"", last=True))
    except InvalidRequest:
        return None  # the server has answered before it had the whole body
    except Unavailable as error:
        return error
    return None


async def _whole(data: bytes) -> AsyncIterator[bytes]:
    yield data


def _field(name: str, value: str | Secret) -> HeaderField:
    checked_text("a header's name", name)
    if isinstance(value, Secret):
        return HeaderField(
            name, checked_text("a secret's prefix", value.prefix), checked_text("a secret's name", value.name)
        )
    if not isinstance(value, str):
        raise InvalidRequest(f"the header {name} must be text or http.secret(NAME), not {type(value).__name__}")
    return HeaderField(name, value)
