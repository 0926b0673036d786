"""HTTP to replicas, over connections that are kept."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlsplit

import httpcore
import msgspec
from starlette.requests import HTTPConnection

from inferd.protocol import ErrorInfo, Unavailable
from inferd_runtime.cluster.front.kept_connections import KeptConnections
from inferd_runtime.cluster.front.peers import ProvenPeers
from inferd_runtime.cluster.hop import hop_authorization
from inferd_runtime.server.gateway.auth import ROLE_KEY, TENANT_KEY, TOKEN_KEY
from inferd_runtime.server.tenancy.quotas import Role
from inferd_runtime.server.tenancy.tokens import TokenRights

KEPT_SECONDS = 10.0
"""How long an unused connection stays open: less than a replica keeps one, so that it never closes one under a request."""
CONNECT_SECONDS = 3.0
OWN_HEADERS = frozenset(
    {
        b"authorization", b"connection", b"content-length", b"expect", b"host", b"keep-alive", b"proxy-authorization",
        b"te", b"trailer", b"transfer-encoding", b"upgrade", b"x-api-key",
    }
)  # fmt: skip
"""Headers of one connection, and those that identify the client: they are not passed on."""
MOST_ANSWER = 256 << 20
"""Bytes of an answer that is read as a whole."""
OK = 200
T = TypeVar("T")
Headers = list[tuple[bytes, bytes]]


class ReplicaGone(Unavailable):
    """A replica did not answer. ``reached``: it may have got the request; ``late``: it may be there, too busy to listen."""

    def __init__(self, reached: bool, *, late: bool = False) -> None:
        super().__init__("the replica that had this request has ended: try again", retry_after_s=1.0)
        self.reached = reached
        self.late = late


class Failure(msgspec.Struct, frozen=True):
    """The body of an answer that is an error."""

    error: ErrorInfo


@dataclass(frozen=True)
class HopRequest:
    """A request as a replica gets it. ``target``: path and query."""

    method: bytes
    target: bytes
    headers: Headers
    body: bytes = b""


def hop_request(request: HTTPConnection, key: str, body: bytes = b"") -> HopRequest:
    """Return a client's request as a replica gets it; for HEAD a GET, as the front may need the body. Its server sends none."""
    scope = request.scope
    query = scope["query_string"]
    target = scope["raw_path"] + (b"?" + query if query else b"")
    kept = [(name, value) for name, value in scope["headers"] if name not in OWN_HEADERS]
    asks = b"authorization", authorization_of_hop(request, key).encode()
    method = "GET" if scope["method"] == "HEAD" else scope["method"]
    return HopRequest(method.encode(), target, [*kept, asks], body)


def authorization_of_hop(request: HTTPConnection, key: str) -> str:
    """Return the header that tells a replica whose a request is."""
    scope = request.scope
    rights = TokenRights(scope[TENANT_KEY], Role(scope[ROLE_KEY]), scope.get(TOKEN_KEY, ""))
    return hop_authorization(key, rights)


def own_request(key: str, target: str, question: object = None) -> HopRequest:
    """Return a request of the front's own: a POST of JSON, or a GET without a ``question``."""
    headers = [(b"authorization", hop_authorization(key).encode()), (b"content-type", b"application/json")]
    if question is None:
        return HopRequest(b"GET", target.encode(), headers)
    return HopRequest(b"POST", target.encode(), headers, msgspec.json.encode(question))


class HopClient:
    """Belongs to one event loop; close it at the end. Connections are made to ``peers``; without a key to whatever listens."""

    def __init__(self, key: str = "") -> None:
        self.peers = ProvenPeers(key)
        self._connections = KeptConnections(KEPT_SECONDS, self.peers if key else None)

    async def close(self) -> None:
        """Close all connections that nothing is asked on."""
        await self._connections.close()

    @asynccontextmanager
    async def stream(
        self, url: str, request: HopRequest, seconds: float | None = None
    ) -> AsyncIterator[httpcore.Response]:
        """Send a request, and yield the answer once its head is there. Raises ReplicaGone, then and while its body is read.

        ``seconds``: how long the replica may say nothing; None: for ever.
        """
        parts = urlsplit(url)
        host = parts.netloc.encode()
        length = [(b"content-length", b"%d" % len(request.body))] if request.body or request.method == b"POST" else []
        target = httpcore.URL(
            scheme=b"http", host=(parts.hostname or "").encode(), port=parts.port, target=request.target
        )
        times = {"connect": CONNECT_SECONDS, "read": seconds, "write": seconds}
        try:
            sent = httpcore.Request(
                request.method, target, headers=[(b"host", host), *length, *request.headers], content=request.body,
                extensions={"timeout": times},
            )  # fmt: skip
            async with self._connections.stream(sent) as answer:
                yield answer
        except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
            raise ReplicaGone(reached=False, late=isinstance(error, httpcore.ConnectTimeout)) from None
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException):
            raise ReplicaGone(reached=True) from None

    async def ask(self, url: str, request: HopRequest, seconds: float) -> bytes:
        """Return the whole body of an answer. Raises the error that it is, and ReplicaGone."""
        async with self.stream(url, request, seconds) as answer:
            data = await whole_body(answer)
        if answer.status >= 400:
            raise answer_of(data, Failure).error.to_exception()
        return data


async def whole_body(answer: httpcore.Response) -> bytes:
    """Return the body of an answer. Raises ReplicaGone for one that is longer than any replica's."""
    data = bytearray()
    async for part in answer.aiter_stream():
        data += part
        if len(data) > MOST_ANSWER:
            raise ReplicaGone(reached=True)
    return bytes(data)


def answer_of(data: bytes | msgspec.Raw, kind: type[T]) -> T:
    """Return what an answer says. Raises ReplicaGone for what no replica answers: something else may listen there by now."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise ReplicaGone(reached=True) from None
