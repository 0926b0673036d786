"""The routes that are passed on: which replica each request goes to."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from urllib.parse import quote

import anyio
import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

from inferd.protocol import InferdError, NotFound, Unavailable
from inferd_runtime.cluster.front.admission import RESPONSES, Admission
from inferd_runtime.cluster.front.hop_client import OK, HopClient, HopRequest, authorization_of_hop, hop_request
from inferd_runtime.cluster.front.launches import ClusterLaunches
from inferd_runtime.cluster.front.members import HEIR_SECONDS, PLACE_SECONDS, Member, Members
from inferd_runtime.cluster.front.proxied import Choose, ProxiedResponse
from inferd_runtime.cluster.front.run_stream import RunStream
from inferd_runtime.cluster.front.socket_relay import relay_session
from inferd_runtime.cluster.front.start_keys import beginning_of
from inferd_runtime.server.chat.answer_pace import AnswerPace
from inferd_runtime.server.gateway.audit import SUBJECT_KEY
from inferd_runtime.server.gateway.auth import TENANT_KEY
from inferd_runtime.server.gateway.chat_routes import SESSION_HEADER, SHORT_BODY
from inferd_runtime.server.gateway.requests import read_bytes
from inferd_runtime.server.tenancy.tenant_use import TenantUse

METHODS = ["GET", "POST", "DELETE"]
PRIVATE = "/cluster/"
MOST_RESPONSES = 50_000
LONGEST_ID = 256
"""Characters of a response's id that is asked for."""
SECONDS = 30.0
AGAIN_SECONDS = 0.1


class _Follows(msgspec.Struct, frozen=True):
    previous_response_id: str | None = None


@dataclass
class ClusterApi:
    """The routes. ``most``: bytes of a request's body."""

    hop: HopClient
    members: Members
    launches: ClusterLaunches
    admission: Admission
    key: str
    use: TenantUse
    most: int
    _pace: AnswerPace = field(default_factory=AnswerPace)
    _responses: OrderedDict[str, str] = field(default_factory=OrderedDict)
    """By a response's id the replica that has it."""

    def routes(self) -> list[BaseRoute]:
        """Return the routing table. What it does not name goes where its body's beginning is cached."""
        one = RESPONSES + "/{response}"
        return [
            Route("/v1/runs", self.launch, methods=["POST"]),
            Route("/v1/runs/{run}", self.of_run, methods=["GET"]),
            Route("/v1/runs/{run}/events", self.events, methods=["GET"]),
            Route("/v1/runs/{run}/cancel", self.of_run, methods=["POST"]),
            Route("/v1/runs/{run}/messages", self.of_run, methods=["POST"]),
            Route("/v1/runs/{run}/files", self.of_run, methods=["GET", "POST"]),
            Route("/v1/runs/{run}/files/{number}", self.of_run, methods=["GET", "POST"]),
            Route(RESPONSES, self.respond, methods=["POST"]),
            WebSocketRoute(RESPONSES, self.responses_socket),
            Route(one, self.of_response, methods=["GET", "DELETE"]),
            Route(one + "/{what}", self.of_response, methods=["GET", "POST"]),
            WebSocketRoute("/v1/session", self.session),
            Route("/{path:path}", self.anything, methods=METHODS),
        ]

    async def launch(self, request: Request) -> Response:
        """Start a run; see :class:`ClusterLaunches`."""
        return await self.launches.launch(request, await self._body(request))

    async def events(self, request: Request) -> Response:
        """Stream a run's events."""
        run = request.path_params["run"]
        request.scope[SUBJECT_KEY] = run
        return RunStream(self.hop, self.members, run, request, self.key)

    async def of_run(self, request: Request) -> Response:
        """Ask the replica that has the run. Only requests for its state are sent a second time."""
        run = request.path_params["run"]
        request.scope[SUBJECT_KEY] = run
        body = await self._body(request)

        @asynccontextmanager
        async def choose() -> AsyncIterator[Member]:
            member = await self.members.of_run(run) or self.members.any()
            with self.members.answering(member):
                yield member

        return self._proxied(hop_request(request, self.key, body), choose)

    async def session(self, websocket: WebSocket) -> None:
        """Serve a script's session."""
        asks = authorization_of_hop(websocket, self.key)
        await relay_session(websocket, self.members, self.hop.peers, self.use, asks)

    async def anything(self, request: Request) -> Response:
        """Ask where the request's beginning is cached, else the least busy replica. Raises NotFound for the cluster's paths."""
        if request.url.path.startswith(PRIVATE):
            raise NotFound(f"there is no route {request.method} {request.url.path}")
        body = await self._body(request)
        return await self._placed(request, body)

    async def _placed(self, request: Request, body: bytes) -> Response:
        has_socket = await self._admit(request, body)
        session, tenant = request.headers.get(SESSION_HEADER), request.scope[TENANT_KEY]
        if len(body) <= SHORT_BODY:
            beginning = beginning_of(body, session)
        else:
            beginning = await self._pace.beside(tenant, partial(beginning_of, body, session))
        sent = hop_request(request, self.key, body)
        return self._proxied(
            sent, self._in_turn(sent, tenant, has_socket, lambda: self.members.placed(tenant, beginning))
        )

    async def _admit(self, request: Request, body: bytes) -> bool:
        """Admit a request. Return whether it is answered in a session, which is one of the tenant's sockets."""
        is_post = request.method == "POST"
        return is_post and not await self.admission.request(request.scope[TENANT_KEY], request.url.path, body)

    def _in_turn(self, sent: HopRequest, tenant: str, has_socket: bool, choose: Choose) -> Choose:
        """Have a request that takes a socket wait for one, and hold it until its answer is complete."""

        @asynccontextmanager
        async def with_socket() -> AsyncIterator[Member]:
            async with self.use.socket_in_turn(tenant, PLACE_SECONDS, sent.body), choose() as member:
                yield member

        return with_socket if has_socket else choose

    def _proxied(self, sent: HopRequest, choose: Choose) -> Response:
        return ProxiedResponse(self.hop, self.members, sent, choose)

    async def _body(self, request: Request) -> bytes:
        """Return the body of a POST. Of others no replica reads it: it would be held here as long as the answer lasts."""
        return await read_bytes(request, self.most, self.use.bodies) if request.method == "POST" else b""

    # Responses ------------------------------------------------------------------------------------------------------

    async def respond(self, request: Request) -> Response:
        """Ask the replica with the response that the request goes on with; without one, where its beginning is cached."""
        body = await self._body(request)
        try:
            previous = msgspec.json.decode(body, type=_Follows).previous_response_id
        except (msgspec.MsgspecError, RecursionError):
            previous = None
        if previous is None:
            return await self._placed(request, body)
        return self._with(previous, request, body, has_socket=await self._admit(request, body))

    async def responses_socket(self, websocket: WebSocket) -> None:
        """Serve a client's responses over a WebSocket: each of its requests is admitted as one over HTTP is."""
        admit = partial(self.admission.request, websocket.scope[TENANT_KEY], RESPONSES)
        asks = authorization_of_hop(websocket, self.key)
        await relay_session(websocket, self.members, self.hop.peers, self.use, asks, admit)

    async def of_response(self, request: Request) -> Response:
        """Ask the replica that has the response."""
        return self._with(request.path_params["response"], request, await self._body(request))

    def _with(self, response: str, request: Request, body: bytes, *, has_socket: bool = False) -> Response:
        """Pass a request on to the replica that has a response."""

        @asynccontextmanager
        async def choose() -> AsyncIterator[Member]:
            member = await self._home(request, response)
            with self.members.answering(member):
                yield member

        sent = hop_request(request, self.key, body)
        return self._proxied(sent, self._in_turn(sent, request.scope[TENANT_KEY], has_socket, choose))

    async def _home(self, request: Request, response: str) -> Member:
        """Return the replica that has a response; any if none has it, which answers so, once all that ended have heirs.

        Raises Unavailable if that takes too long.
        """
        if len(response) > LONGEST_ID:
            return self.members.any()
        with anyio.move_on_after(HEIR_SECONDS):
            while True:
                known = self._responses.get(response)
                member = None if known is None else self.members.live.get(self.members.heir(known))
                member = member or await self._found(request, response)
                if member is not None or not self.members.missing:
                    return member or self.members.any()
                await anyio.sleep(AGAIN_SECONDS)
        raise Unavailable(
            "a replica that may have had it has ended, and nobody has taken over from it", retry_after_s=1.0
        )

    async def _found(self, request: Request, response: str) -> Member | None:
        """Ask all replicas for a response at once: one that says nothing holds up no other."""
        asked = hop_request(request, self.key)
        asked = HopRequest(b"GET", f"{RESPONSES}/{quote(response, safe='')}".encode(), asked.headers)
        found: list[Member] = []
        async with anyio.create_task_group() as tasks:
            for one in self.members.live.values():
                tasks.start_soon(self._ask_for, one, asked, found, tasks.cancel_scope)
        for one in found[:1]:
            self._responses[response] = one.name
        while len(self._responses) > MOST_RESPONSES:
            self._responses.popitem(last=False)
        return found[0] if found else None

    async def _ask_for(self, member: Member, asked: HopRequest, found: list[Member], others: anyio.CancelScope) -> None:
        with contextlib.suppress(InferdError), self.members.watched(member):
            async with self.hop.stream(member.url, asked, SECONDS) as answer:
                if answer.status == OK:
                    found.append(member)
                    others.cancel()
