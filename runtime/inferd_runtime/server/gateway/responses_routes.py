"""OpenAI's Responses: answering, and what is kept of it."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

from inferd_runtime.server.chat.held_answers import held_answer
from inferd_runtime.server.dialects.reading import invalid
from inferd_runtime.server.dialects.responses.answer import counted_json, read_input_tokens, read_responses
from inferd_runtime.server.dialects.responses.fields import INCLUDED
from inferd_runtime.server.dialects.responses.stored import LISTED, MAX_LISTED, StoredResponse, deleted_json, item_page
from inferd_runtime.server.gateway.auth import TENANT_KEY
from inferd_runtime.server.gateway.chat_routes import ChatApi
from inferd_runtime.server.gateway.event_stream import EventResponse
from inferd_runtime.server.gateway.model_routes import ModelApi
from inferd_runtime.server.gateway.replies import reply
from inferd_runtime.server.gateway.responses_socket import ResponsesSocket
from inferd_runtime.server.gateway.socket_protocol import RESPONSES_PATH
from inferd_runtime.server.response_store.response_store import ResponseStore

MAX_DIGITS, MAX_NUMBER_DIGITS = 4, 15


@dataclass(frozen=True)
class ResponsesApi:
    """The routes. A response belongs to its tenant: to others it is not found."""

    models: ModelApi
    store: ResponseStore

    @property
    def chat(self) -> ChatApi:
        """What answers."""
        return self.models.chat

    def routes(self) -> list[BaseRoute]:
        """Return the routing table."""
        one = RESPONSES_PATH + "/{response}"
        return [
            Route(RESPONSES_PATH, self.create, methods=["POST"]),
            WebSocketRoute(RESPONSES_PATH, self.socket),
            Route(f"{RESPONSES_PATH}/input_tokens", self.input_tokens, methods=["POST"]),
            Route(one, self.get, methods=["GET"]),
            Route(one, self.delete, methods=["DELETE"]),
            Route(f"{one}/cancel", self.cancel, methods=["POST"]),
            Route(f"{one}/input_items", self.input_items, methods=["GET"]),
        ]

    async def create(self, request: Request) -> Response:
        """``POST /v1/responses``. The answer is kept before its end is sent, so that the next request can follow it at once."""
        tenant = request.scope[TENANT_KEY]
        exchange = await self.chat.read(request, read_responses)
        await self.store.follow(exchange, tenant)
        exchange.when_complete = lambda stored: self.store.keep(stored, tenant)
        if exchange.background:
            target = await self.chat.serving.target(exchange.model, tenant)
            answer = self.chat.serving.answer(target, tenant, exchange.request)
            places, size = self.chat.runtime.use.outstanding, exchange.size
            held = held_answer(answer, places, tenant, keeps_events=exchange.streams, request=size)
            begun = await self.store.begin(exchange, held, tenant)
            if exchange.kept is not None:
                return EventResponse(begun.follow(exchange.kept, -1), as_sse=True)
            return reply(exchange.begun.response)
        return await self.chat.respond(exchange, tenant)

    async def socket(self, websocket: WebSocket) -> None:
        """``GET /v1/responses``, as a WebSocket: what is created there is answered there."""
        await ResponsesSocket(websocket, self.chat, self.store).serve()

    async def input_tokens(self, request: Request) -> Response:
        """Answer how many tokens the prompt of a request of ``/v1/responses`` has."""
        asked = await self.chat.read(request, partial(read_input_tokens, self.models.info().name))
        await self.store.follow(asked, request.scope[TENANT_KEY])
        conversation = await self.models.rendered(asked.model, asked.request, request)
        return reply(counted_json(len(conversation.tokens)))

    async def get(self, request: Request) -> Response:
        """``GET /v1/responses/{id}``, as a stream, too."""
        _check_included(request)
        after = _asked_events(request)
        if after is None:
            return reply((await self._stored(request)).response)
        tenant, response = request.scope[TENANT_KEY], request.path_params["response"]
        with ExitStack() as counted:
            events, size = await self.store.events(tenant, response, after)
            counted.enter_context(self.chat.runtime.use.outstanding.holding(tenant, size))
            return EventResponse(events, as_sse=True, held=counted.pop_all())

    async def delete(self, request: Request) -> Response:
        """``DELETE /v1/responses/{id}``."""
        response = request.path_params["response"]
        await self.store.delete(request.scope[TENANT_KEY], response)
        return reply(deleted_json(response))

    async def cancel(self, request: Request) -> Response:
        """``POST /v1/responses/{id}/cancel``, of one that is answered in the background."""
        return reply((await self.store.cancel(request.scope[TENANT_KEY], request.path_params["response"])).response)

    async def input_items(self, request: Request) -> Response:
        """``GET /v1/responses/{id}/input_items``, a page of them."""
        _check_included(request)
        query = request.query_params
        limit = _limit(request)
        stored = await self._stored(request)
        return reply(item_page(stored.input, limit, query.get("order", "desc"), query.get("after", "")))

    async def _stored(self, request: Request) -> StoredResponse:
        return await self.store.find(request.scope[TENANT_KEY], request.path_params["response"])


def _asked_events(request: Request) -> int | None:
    """Return behind which number events are asked for, None where they are not."""
    query = request.query_params
    if query.get("include_obfuscation", "false") != "false":
        raise invalid("include_obfuscation", "include_obfuscation: events have no padding")
    stream, after = query.get("stream", "false"), query.get("starting_after", "")
    if stream not in ("true", "false"):
        raise invalid("stream", "stream: it must be true or false")
    if after and stream == "false":
        raise invalid("starting_after", "starting_after: it needs stream=true")
    if after and not (after.isascii() and after.isdecimal() and len(after) <= MAX_NUMBER_DIGITS):
        raise invalid("starting_after", "starting_after: it must be the number of an event")
    return None if stream == "false" else int(after or -1)


def _check_included(request: Request) -> None:
    for name in ("include", "include[]"):
        for value in request.query_params.getlist(name):
            if value not in INCLUDED:
                raise invalid("include", f"include: only {' and '.join(INCLUDED)}")


def _limit(request: Request) -> int:
    text = request.query_params.get("limit", str(LISTED))
    if not (text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS and 1 <= int(text) <= MAX_LISTED):
        raise invalid("limit", f"limit: it must be 1 to {MAX_LISTED}")
    return int(text)
