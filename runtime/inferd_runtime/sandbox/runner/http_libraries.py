"""HTTP libraries over ``inferd.http``, because their own ways out need sockets: ``urllib.request``, ``requests`` and ``httpx``.

Their requests go where operator and manifest let :func:`inferd.http.fetch` go, and raise what it raises, but for their own errors
of connections and time. Where a library does not await, the program's other tasks stand still meanwhile.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import urllib.error
import urllib.request
import urllib.response
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

from inferd.http import Response, fetch, too_many_open
from inferd.protocol import LimitExceeded, Unavailable
from inferd.protocol.http import DEFAULT_TIMEOUT, MAX_TIMEOUT, MAX_WRITE, OWN_HEADERS
from inferd.transport import Port, restore_transport, use_port

NOT_HERE = (
    "verify=False, certificates, proxies and Unix sockets are not a program's to choose: the operator's server makes the "
    "connections (docs/guides/network.md)"
)
Ask = Callable[[Any], Any]
Fields = Iterable[tuple[Any, Any]]


class BlockingTransport:
    """Answers before it returns, so that a coroutine over it never waits."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    async def call(self, request: Any) -> Any:
        """Send a request, and block until its reply."""
        return self._ask(request)


class BodyReader(io.RawIOBase):
    """A response as the libraries know those of ``http.client``: its body is read as it comes."""

    def __init__(self, response: Response) -> None:
        self._pieces = response.stream()
        self._held = b""
        self.status = response.status
        self.reason = http.client.responses.get(response.status, "")
        self.headers = response.headers
        self.msg = http.client.HTTPMessage()
        for name, value in response.header_pairs:
            self.msg[name] = value
        self._original_response = self
        """Where `requests` looks for cookies."""

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read what is there, at least a byte; 0 at the end."""
        while not self._held:
            try:
                self._held = _at_once(anext(self._pieces))
            except StopAsyncIteration:
                return 0
        size = min(len(buffer), len(self._held))
        buffer[:size], self._held = self._held[:size], self._held[size:]
        return size


class HttpLibraries:
    """Makes libraries fetch. ``ask`` sends a request to the host, and blocks until its reply."""

    def __init__(self, ask: Ask) -> None:
        self._port = Port(BlockingTransport(ask))
        self._known = {"requests.adapters": self._requests, "httpx._transports.default": self._httpx}

    def adapt(self, module: ModuleType) -> None:
        """Change a module of a package that has just been loaded, if it is one of those that send."""
        self._known.get(module.__name__, lambda module: None)(module)

    def send(self, method: str, url: str, headers: Fields, body: Any, timeout: Any) -> BodyReader:
        """Send a request, and block until the head of its response is there. ``timeout``: a number, several, or anything else."""
        before = use_port(self._port)
        try:
            return BodyReader(_at_once(_fetch(method, url, headers, body, timeout)))
        finally:
            restore_transport(before)

    def adapt_urllib(self) -> None:
        """Make ``urllib.request`` fetch what is http or https."""
        send = self.send

        class FetchHandler(urllib.request.HTTPHandler):
            https_request = urllib.request.AbstractHTTPHandler.do_request_

            def http_open(self, req: urllib.request.Request) -> Any:
                fields = {**req.unredirected_hdrs, **req.headers}.items()
                with _told(urllib.error.URLError, urllib.error.URLError):
                    body = send(req.get_method(), req.full_url, fields, req.data, req.timeout)
                answer = urllib.response.addinfourl(io.BufferedReader(body), body.msg, req.full_url, body.status)
                answer.msg = body.reason  # type: ignore[attr-defined]  # where HTTPError takes its text from
                return answer

            https_open = http_open

        urllib.request.HTTPHandler = urllib.request.HTTPSHandler = FetchHandler  # type: ignore[misc, assignment]

    def _requests(self, module: Any) -> None:
        libraries = self

        def send(
            self: Any, request: Any, stream: bool = False, timeout: Any = None, verify: Any = True, cert: Any = None,
            proxies: Any = None,
        ) -> Any:  # fmt: skip
            _refuse(verify is not True, cert, proxies)
            with _told(module.ConnectionError, module.ReadTimeout):
                body = libraries.send(request.method, request.url, request.headers.items(), request.body, timeout)
            return self.build_response(request, body)

        module.HTTPAdapter.send = send

    def _httpx(self, module: Any) -> None:
        libraries = self

        class Pieces(module.SyncByteStream):  # type: ignore[misc]
            def __init__(self, body: BodyReader) -> None:
                self._body = body

            def __iter__(self) -> Iterator[bytes]:
                return iter(lambda: self._body.read(MAX_WRITE) or b"", b"")

        class AsyncPieces(module.AsyncByteStream):  # type: ignore[misc]
            def __init__(self, response: Response) -> None:
                self._response = response
                self.aclose = response.close

            def __aiter__(self) -> AsyncIterator[bytes]:
                return self._response.stream()

        class FetchTransport(module.BaseTransport, module.AsyncBaseTransport):  # type: ignore[misc]
            def __init__(self, verify: Any = True, cert: Any = None, **options: Any) -> None:
                _refuse(verify is not True, cert, options.get("proxy"), options.get("uds"))

            def handle_request(self, request: Any) -> Any:
                with _told(module.ConnectError, module.ReadTimeout):
                    body = libraries.send(*_parts(request), request.read(), _timeout(request))
                return module.Response(body.status, headers=body.msg.items(), stream=Pieces(body))

            async def handle_async_request(self, request: Any) -> Any:
                with _told(module.ConnectError, module.ReadTimeout):
                    response = await _fetch(*_parts(request), await request.aread(), _timeout(request))
                return module.Response(response.status, headers=response.header_pairs, stream=AsyncPieces(response))

        module.HTTPTransport = module.AsyncHTTPTransport = FetchTransport


def _at_once(awaited: Any) -> Any:
    """Return what something over a :class:`BlockingTransport` returns. Raises LimitExceeded for what would wait for a place."""
    try:
        awaited.send(None)
    except StopIteration as end:
        return end.value
    awaited.close()
    raise too_many_open()


async def _fetch(method: str, url: str, headers: Fields, body: Any, times: Any) -> Response:
    times = times if isinstance(times, (tuple, list)) else [times]
    numbers = [time for time in times if isinstance(time, (int, float))]
    own = {_text(name): _text(value) for name, value in headers if _text(name).lower() not in OWN_HEADERS}
    if body is not None and not isinstance(body, (bytes, bytearray, str)):
        body = _pieces(body)
    seconds = min(max(numbers, default=DEFAULT_TIMEOUT), MAX_TIMEOUT)
    return await fetch(url, method=method, headers=own, body=body, timeout=seconds, redirects=0)


async def _pieces(body: Any) -> AsyncIterator[bytes]:
    for piece in iter(lambda: body.read(MAX_WRITE), b"") if hasattr(body, "read") else body:
        yield piece


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _parts(request: Any) -> tuple[str, str, Fields]:
    return request.method, str(request.url), request.headers.items()


def _timeout(request: Any) -> list[Any]:
    return list(request.extensions.get("timeout", {}).values())


def _refuse(*asked: Any) -> None:
    if any(asked):
        raise NotImplementedError(NOT_HERE)


@contextlib.contextmanager
def _told(failed: Callable[[str], Exception], late: Callable[[str], Exception]) -> Iterator[None]:
    """Raise a library's own errors of connections and of time."""
    try:
        yield
    except Unavailable as error:
        raise failed(str(error)) from error
    except LimitExceeded as error:
        if error.detail.get("limit") != "timeout":
            raise
        raise late(str(error)) from error
