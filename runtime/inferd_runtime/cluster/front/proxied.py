"""One request, passed on to a replica, and its answer passed back as it comes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import anyio
import httpcore
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from inferd_runtime.cluster.front.hop_client import HopClient, HopRequest, ReplicaGone
from inferd_runtime.cluster.front.members import Member, Members
from inferd_runtime.server.gateway.event_stream import SSE
from inferd_runtime.server.gateway.leaving import until_left
from inferd_runtime.server.gateway.replies import error_reply

OF_A_CONNECTION = frozenset({b"connection", b"date", b"keep-alive", b"server", b"transfer-encoding"})
"""Headers that the front's own server writes."""
MOST_TRIES = 4
"""Replicas that a request is offered to, one after the other, while none has got it."""
AGAIN_SECONDS = 0.05
Choose = Callable[[], AbstractAsyncContextManager[Member]]
log = logging.getLogger("inferd.cluster")


class ProxiedResponse(Response):
    """Sends a request to the replica that ``choose`` yields. One that is not there is reported, and another one is chosen.

    A replica that ends before its answer begins makes the request fail with ReplicaGone, because it may have done what was asked;
    a GET, which does nothing, is asked again.
    """

    def __init__(self, hop: HopClient, members: Members, request: HopRequest, choose: Choose) -> None:
        self._hop = hop
        self._members = members
        self._request = request
        self._choose = choose
        self._begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, until the answer is complete or the client has left."""
        await until_left(receive, lambda: self._answer(scope, send))

    async def _answer(self, scope: Scope, send: Send) -> None:
        for left in reversed(range(MOST_TRIES)):
            try:
                async with self._choose() as member:
                    with self._members.watched(member):
                        async with self._hop.stream(member.url, self._request) as answer:
                            self._begun = True
                            await pass_back(answer, scope, send)
                return
            except ReplicaGone as gone:
                again = not gone.reached or self._request.method == b"GET"
                if self._begun or not again or not left:
                    raise
                await anyio.sleep(AGAIN_SECONDS)


async def pass_back(answer: httpcore.Response, scope: Scope, send: Send) -> None:
    """Send a replica's answer. One that breaks off ends with an error event, if it is a stream of events, and else unfinished:
    the server then closes the connection, so that the client sees it.
    """
    headers = [(name.lower(), value) for name, value in answer.headers if name.lower() not in OF_A_CONNECTION]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    try:
        async for part in answer.aiter_stream():
            await send({"type": "http.response.body", "body": part, "more_body": True})
    except (httpcore.NetworkError, httpcore.ProtocolError) as broken:
        log.warning("an answer of a replica broke off: %s", type(broken).__name__)
        if dict(headers).get(b"content-type", b"").startswith(SSE.encode()):
            error = bytes(error_reply(ReplicaGone(reached=True), scope).body)
            await send({"type": "http.response.body", "body": b"event: error\ndata: " + error + b"\n\n"})
        return
    await send({"type": "http.response.body", "body": b""})
