"""The routes of LLM clients: each reads a dialect's request, finds who answers, and sends the answer in that dialect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from inferd_runtime.server.chat.answer_pace import AnswerPace
from inferd_runtime.server.chat.held_answers import held_answer
from inferd_runtime.server.chat.several_answers import Answer, several_answers
from inferd_runtime.server.chat.targets import ChatServing
from inferd_runtime.server.dialects.exchange import ClientHeaders, Dialect, Exchange
from inferd_runtime.server.dialects.openai.completions import CompletionExchange
from inferd_runtime.server.dialects.routes import CHAT_ROUTES
from inferd_runtime.server.gateway.auth import TENANT_KEY
from inferd_runtime.server.gateway.chat_response import ChatResponse
from inferd_runtime.server.gateway.requests import read_bytes
from inferd_runtime.server.supervisor.runtime import Runtime
from inferd_runtime.server.telemetry.request_ids import REQUEST_KEY

SESSION_HEADER = "x-session-id"
SHORT_BODY = 64 << 10
"""Bytes that are read at once, in a few milliseconds at most."""
T = TypeVar("T")


@dataclass(frozen=True)
class ChatApi:
    """The routes of all dialects."""

    runtime: Runtime
    serving: ChatServing
    pace: AnswerPace

    def routes(self) -> list[BaseRoute]:
        """Return the routing table."""
        return [Route(path, partial(self.answer, dialect), methods=["POST"]) for path, dialect in CHAT_ROUTES.items()]

    async def answer(self, dialect: Dialect, request: Request) -> Response:
        """Answer a request of a dialect."""
        exchange = await self.read(request, dialect)
        return await self.respond(exchange, request.scope[TENANT_KEY])

    async def read(self, request: Request, read: Callable[[bytes, ClientHeaders], T]) -> T:
        """Return what ``read`` makes of a request's body and headers; of a long body in a thread, so that other requests have
        their turns meanwhile: it counts until it is read. Raises what :func:`read_bytes` and ``read`` raise.
        """
        body = await read_bytes(request, self.runtime.settings.max_body_bytes, self.runtime.use.bodies)
        return await self.read_body(request, body, read)

    async def read_body(self, client: HTTPConnection, body: bytes, read: Callable[[bytes, ClientHeaders], T]) -> T:
        """Return what ``read`` makes of a body, as :meth:`read` does, and of the headers with which the client came."""
        tenant = client.scope[TENANT_KEY]
        headers = ClientHeaders(client.scope.get(REQUEST_KEY, ""), client.headers.get(SESSION_HEADER, ""))
        if len(body) <= SHORT_BODY:
            return read(body, headers)
        with self.runtime.use.bodies.holding(tenant, len(body)):
            return await self.pace.beside(tenant, partial(read, body, headers))

    async def respond(self, exchange: Exchange, tenant: str) -> ChatResponse:
        """Have a request answered by what its model stands for."""
        target = await self.serving.target(exchange.model, tenant)
        if isinstance(exchange, CompletionExchange) and len(exchange.requests) > 1:
            answers = [self.serving.answer(target, tenant, each) for each in exchange.requests]
            answer: Answer = several_answers(answers, exchange.request.n)
        else:
            answer = self.serving.answer(target, tenant, exchange.request)
        return ChatResponse(exchange, self._held(exchange, answer, tenant), self.pace, tenant)

    def _held(self, exchange: Exchange, answer: Answer, tenant: str) -> Answer:
        """Return an answer that counts what is held of it, where it is not sent on as it comes."""
        if exchange.streams and not exchange.holds:
            return answer
        prompts = exchange.request.n if isinstance(exchange, CompletionExchange) else 1
        return held_answer(answer, self.runtime.use.outstanding, tenant, prompts)
