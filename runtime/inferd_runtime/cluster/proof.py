"""How who connects finds out that a replica or the front listens there still, before it shows the cluster's key.

The port of a process that has ended may be anybody's by now. So each connection begins with a question that only a holder of the
key can answer, in its own name: what passes the question on to another process of the cluster gets that one's name.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import re
import secrets
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from inferd.protocol import InvalidRequest

PROOF_PATH = "/cluster/proof"
HEADER = "x-cluster-proof"
NONCE = re.compile("[0-9a-f]{32}")
MOST_HEAD = 8192
HEAD_END = b"\r\n\r\n"


class Unproven(ConnectionError):
    """What listens there is not the process of the cluster that was meant."""

    def __init__(self) -> None:
        super().__init__("another process listens there")


def proof_of(key: str, name: str, nonce: str) -> str:
    """Return what the process of this name answers: a replica's name, or the front's private address."""
    return hmac.new(key.encode(), f"\0proof\0{name}\0{nonce}".encode(), hashlib.sha256).hexdigest()


def proof_route(key: str, name: str) -> Route:
    """Return the route at which anybody may ask a process for its proof."""

    async def prove(request: Request) -> Response:
        nonce = request.url.query
        if not NONCE.fullmatch(nonce):
            raise InvalidRequest("the query has to be 32 hexadecimal digits")
        return Response(status_code=204, headers={HEADER: proof_of(key, name, nonce)})

    return Route(PROOF_PATH, prove, methods=["GET"])


async def check_peer(
    write: Callable[[bytes], Awaitable[object]], read: Callable[[int], Awaitable[bytes]], key: str, name: str
) -> None:
    """Ask over a new connection, which is as new once this returns. Raises Unproven, and what the functions raise."""
    nonce, head = new_nonce(), b""
    await write(f"GET {PROOF_PATH}?{nonce} HTTP/1.1\r\nhost: cluster\r\n\r\n".encode())
    while not head.endswith(HEAD_END):
        part = await read(MOST_HEAD)
        head += part
        if not part or len(head) > MOST_HEAD:
            raise Unproven
    if f"\r\n{HEADER}: {proof_of(key, name, nonce)}\r\n".encode() not in head:
        raise Unproven


def check_peer_of(connection: http.client.HTTPConnection, key: str, name: str) -> None:
    """Ask over a connection that blocks, and does not connect anew from then on. Raises Unproven, OSError, HTTPException."""
    nonce = new_nonce()
    connection.request("GET", f"{PROOF_PATH}?{nonce}")
    answer = connection.getresponse()
    answer.read(MOST_HEAD)
    connection.auto_open = 0
    if not hmac.compare_digest(answer.getheader(HEADER, "").encode(), proof_of(key, name, nonce).encode()):
        raise Unproven


def new_nonce() -> str:
    """Return a question that was never asked before."""
    return secrets.token_hex(16)
