"""``http.*``: requests to servers elsewhere, which the gateway lets through or refuses and a process of its own sends.

A request whose body is at hand is one ``http.fetch``; one whose body comes in pieces is ``http.begin``, ``http.write`` for each
piece and ``http.head``. Either way ``http.read`` brings the response's body, and its last piece ends the exchange.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from inferd.protocol.carrying import shown
from inferd.protocol.errors import InvalidRequest, LimitExceeded
from inferd.protocol.operations import Done, operation
from inferd.protocol.ranges import check_whole

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
"""CONNECT would be a tunnel, and TRACE an echo of headers with secrets."""
MAX_URL = 8 << 10
MAX_HEADERS = 64
MAX_HEADER_BYTES = 16 << 10
"""Of all names and values of a request's headers."""
MAX_WRITE = 256 << 10
"""Bytes of a piece of a request's body, and of a response's."""
MAX_BODY = 512 << 10
"""Bytes of a request's body that is sent as a whole; more goes in pieces."""
MAX_OPEN_FETCHES = 16
"""Requests that one run, or one script, has open."""
MAX_REDIRECTS = 20
MAX_TIMEOUT = 900.0
DEFAULT_TIMEOUT = 60.0
NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}")
VALUE = re.compile(r"[\x20-\x7e\t]*")
SECRET_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
OWN_HEADERS = frozenset({
    "accept-encoding", "connection", "content-length", "expect", "host", "keep-alive", "proxy-authenticate",
    "proxy-authorization", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
})  # fmt: skip
"""What the runtime decides: how the body is framed, who is meant, and what the connection is for."""


@dataclass(frozen=True)
class HeaderField:
    """One header of a request. With ``secret``, the name of a secret, the host puts the secret's text behind ``value``."""

    name: str
    value: str = ""
    secret: str = ""


@dataclass(frozen=True)
class ResponseHead:
    """The beginning of a response. ``headers`` are pairs of a name in small letters and a value.

    ``url`` is the address that answered, after redirects. ``chunk`` is what of the body has come already; ``last``: it is all.
    """

    fetch: int
    status: int
    url: str
    headers: list[list[str]]
    chunk: bytes = b""
    last: bool = False


@dataclass(frozen=True)
class FetchBegun:
    """A request is being sent."""

    fetch: int


@dataclass(frozen=True)
class BodyChunk:
    """The next bytes of a response's body; ``last``: there are no more."""

    data: bytes
    last: bool


@operation("http.fetch", ResponseHead, by_gateway=True)
@dataclass(frozen=True)
class StartFetch:
    """Send a request with its whole body, and wait for the response's head. ``timeout_s`` is for all of it, body included."""

    method: str
    url: str
    headers: list[HeaderField] = field(default_factory=list)
    body: bytes = b""
    timeout_s: float = DEFAULT_TIMEOUT
    redirects: int = 5


@operation("http.begin", FetchBegun, by_gateway=True)
@dataclass(frozen=True)
class BeginFetch:
    """Send a request whose body comes with :class:`WriteBody`. A redirect that asks for the body again is not followed."""

    method: str
    url: str
    headers: list[HeaderField] = field(default_factory=list)
    timeout_s: float = DEFAULT_TIMEOUT
    redirects: int = 5


@operation("http.write", Done, by_gateway=True)
@dataclass(frozen=True)
class WriteBody:
    """Send the next piece of a request's body, once the piece before it is on its way."""

    fetch: int
    data: bytes
    last: bool = False


@operation("http.head", ResponseHead, by_gateway=True)
@dataclass(frozen=True)
class AwaitHead:
    """Wait for the head of the response to a request that was begun."""

    fetch: int


@operation("http.read", BodyChunk, by_gateway=True)
@dataclass(frozen=True)
class ReadBody:
    """Wait for the next bytes of a response's body."""

    fetch: int


@operation("http.close", Done, by_gateway=True)
@dataclass(frozen=True)
class CloseFetch:
    """Give a request up."""

    fetch: int


def check_fetch(request: StartFetch | BeginFetch) -> None:
    """Raise InvalidRequest for what cannot be sent, LimitExceeded for what is too large. The URL is read by the runtime."""
    if request.method not in METHODS:
        raise InvalidRequest(f"method must be one of {', '.join(sorted(METHODS))}, not {shown(request.method)}")
    if len(request.url) > MAX_URL:
        raise LimitExceeded(f"a URL may have {MAX_URL} characters", limit="url_characters", value=MAX_URL)
    if not 0 < request.timeout_s <= MAX_TIMEOUT:
        raise InvalidRequest(f"timeout must be above 0 and at most {MAX_TIMEOUT:g} seconds, not {request.timeout_s}")
    check_whole("redirects", request.redirects, 0, MAX_REDIRECTS)
    check_header_fields(request.headers)
    if isinstance(request, StartFetch) and len(request.body) > MAX_BODY:
        text = f"a body that is sent as a whole may have {MAX_BODY} bytes, this one has {len(request.body)}"
        raise LimitExceeded(text, limit="http_request_bytes", value=MAX_BODY, raise_with="a body in pieces")


def check_header_fields(headers: list[HeaderField]) -> None:
    """Raise InvalidRequest for a header that a program may not send, LimitExceeded for too many or too long ones."""
    size = sum(len(one.name) + len(one.value) + 4 for one in headers)
    if len(headers) > MAX_HEADERS or size > MAX_HEADER_BYTES:
        text = f"a request may have {MAX_HEADERS} headers, of {MAX_HEADER_BYTES} bytes together"
        raise LimitExceeded(text, limit="http_header_bytes", value=MAX_HEADER_BYTES, raise_with="fewer headers")
    for one in headers:
        if not NAME.fullmatch(one.name):
            raise InvalidRequest(f"{shown(one.name)} cannot be a header's name")
        if one.name.lower() in OWN_HEADERS:
            raise InvalidRequest(f"the header {one.name} is set by the runtime, not by programs")
        if not VALUE.fullmatch(one.value):
            raise InvalidRequest(f"the value of the header {one.name} must be of printable ASCII characters")
        if one.secret and not SECRET_NAME.fullmatch(one.secret):
            raise InvalidRequest(f"{shown(one.secret)} cannot be a secret's name")


def check_write(request: WriteBody) -> None:
    """Raise LimitExceeded for a piece that is too large."""
    if len(request.data) > MAX_WRITE:
        text = f"a piece of a body may have {MAX_WRITE} bytes, this one has {len(request.data)}"
        raise LimitExceeded(text, limit="http_write_bytes", value=MAX_WRITE, raise_with="smaller pieces")
