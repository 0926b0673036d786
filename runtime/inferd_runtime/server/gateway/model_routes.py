"""Routes of LLM clients that need no program: models, embeddings, tokens, and prompts as the model reads them."""

from __future__ import annotations

import base64
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from inferd.chat import ChatRequest, rendered
from inferd.chat.conversation import Conversation
from inferd.protocol import (
    Detokenize,
    Embed,
    Embeddings,
    GetTokenizerInfo,
    ModelInfo,
    Text,
    TokenBytes,
    Tokenize,
    TokenPieces,
)
from inferd.protocol.passes import MAX_INPUTS
from inferd.transport import Transport, transport_in_force
from inferd_runtime.server.chat.tenant_sessions import TenantSessions
from inferd_runtime.server.dialects.anthropic.dialect import read_count_tokens
from inferd_runtime.server.dialects.anthropic.model_list import (
    LISTED,
    ModelQuery,
    anthropic_model_json,
    anthropic_models_body,
)
from inferd_runtime.server.dialects.exchange import unknown_model
from inferd_runtime.server.dialects.openai.chat import read_chat
from inferd_runtime.server.dialects.openai.completion_fields import Prompt
from inferd_runtime.server.dialects.openai.embeddings import EmbeddingQuery, embeddings_body, read_embeddings
from inferd_runtime.server.dialects.openai.model_list import model_json, models_body
from inferd_runtime.server.dialects.openai.tokens import (
    detokenized_body,
    read_detokenize,
    read_tokenize,
    rendered_body,
    tokenized_body,
    tokenizer_body,
)
from inferd_runtime.server.dialects.reading import invalid
from inferd_runtime.server.dialects.refusals import naming
from inferd_runtime.server.dialects.routes import is_for_anthropic
from inferd_runtime.server.gateway.auth import TENANT_KEY
from inferd_runtime.server.gateway.chat_routes import ChatApi
from inferd_runtime.server.gateway.replies import JSON_TYPE, reply
from inferd_runtime.server.telemetry.request_ids import REQUEST_KEY

MAX_DIGITS = 4
"""Of a number in a query."""


@dataclass(frozen=True)
class ModelApi:
    """The routes about models, each of which asks the engine in a session of the tenant's own."""

    chat: ChatApi
    sessions: TenantSessions

    def routes(self) -> list[BaseRoute]:
        """Return the routing table."""
        return [
            Route("/v1/models", self.models),
            Route("/v1/models/{model:path}", self.model),
            Route("/v1/embeddings", self.embeddings, methods=["POST"]),
            Route("/v1/messages/count_tokens", self.count_tokens, methods=["POST"]),
            Route("/v1/chat/completions/render", self.render, methods=["POST"]),
            Route("/tokenize", self.tokenize, methods=["POST"]),
            Route("/detokenize", self.detokenize, methods=["POST"]),
            Route("/tokenizer_info", self.tokenizer_info),
        ]

    async def models(self, request: Request) -> Response:
        """Answer what clients may name as their model, and the served models with their sizes; the first is the default.
        Anthropic's clients get a page of the names.
        """
        query = _model_query(request)
        entries = await self.chat.serving.entries(request.scope[TENANT_KEY])
        if is_for_anthropic(request.url.path, request.headers):
            return reply(anthropic_models_body(entries, query))
        return reply({**models_body(entries), "models": self.chat.runtime.models.models})

    async def model(self, request: Request) -> Response:
        """Answer one of them, or a version of a program."""
        shape = anthropic_model_json if is_for_anthropic(request.url.path, request.headers) else model_json
        return reply(shape(await self.chat.serving.entry(request.path_params["model"], request.scope[TENANT_KEY])))

    async def embeddings(self, request: Request) -> Response:
        """Answer a vector for each input."""
        tenant = request.scope[TENANT_KEY]
        query = await self.chat.read(request, read_embeddings)
        target = await self.chat.serving.model_target(query.model, tenant)
        vectors: list[str] = []
        used = 0
        async with self.sessions.open(tenant, query) as calls:
            inputs = await self._cut_inputs(query, target.model, calls)
            texts = [each for each in inputs if isinstance(each, str)]
            tokens = [each for each in inputs if not isinstance(each, str)]
            for start in range(0, len(query.inputs), MAX_INPUTS):
                part = slice(start, start + MAX_INPUTS)
                asked = Embed(texts[part], tokens[part], model=target.model, adapter=target.adapter)
                found: Embeddings = await calls.call(asked)
                query.check_dimensions(found.size)
                vectors += found.packed
                used += found.prompt_tokens
        body = await self.chat.pace.beside(tenant, partial(embeddings_body, query, vectors, used))
        return Response(body, media_type=JSON_TYPE)

    async def _cut_inputs(self, query: EmbeddingQuery, model: str, calls: Transport) -> list[Prompt]:
        """Return the inputs, as tokens where they may have to be cut."""
        if query.truncate is None:
            return query.inputs
        room = self.info(model).max_context
        inputs: list[Prompt] = []
        for each in query.inputs:
            tokens = (await calls.call(Tokenize(each, model, start=True))).tokens if isinstance(each, str) else each
            inputs.append(query.cut(tokens, room))
        return inputs

    async def count_tokens(self, request: Request) -> Response:
        """Answer how many tokens a request of ``/v1/messages`` has."""
        asked = await self.chat.read(request, read_count_tokens)
        conversation = await self.rendered(asked.model, asked.request, request)
        return reply(asked.body(len(conversation.tokens)))

    async def render(self, request: Request) -> Response:
        """Answer a chat request's prompt, as the model reads it."""
        asked = await self.chat.read(request, read_chat)
        conversation = await self.rendered(asked.model, asked.request, request)
        return reply(
            rendered_body(request.scope.get(REQUEST_KEY, ""), asked.model, conversation.text, conversation.tokens)
        )

    async def tokenize(self, request: Request) -> Response:
        """Answer the tokens of a text or a conversation."""
        query = await self.chat.read(request, lambda body, _: read_tokenize(body))
        info = self.info(query.model)
        if query.chat is not None:
            tokens = (await self.rendered(info.name, query.chat, request)).tokens
        else:
            asked = Tokenize(query.prompt, info.name, special=True, start=query.special_tokens)  # as a text completion
            tokens = (await self._ask(request, asked)).tokens
        texts = None
        if query.token_texts:
            pieces: TokenPieces = await self._ask(request, TokenBytes(tokens, info.name))
            texts = [base64.b64decode(piece).decode(errors="replace") for piece in pieces.pieces]
        return reply(tokenized_body(tokens, info.max_context, texts))

    async def detokenize(self, request: Request) -> Response:
        """Answer the text of tokens."""
        query = await self.chat.read(request, lambda body, _: read_detokenize(body))
        asked = Detokenize(query.tokens, self.info(query.model).name, special=True)
        with naming("tokens"):
            text: Text = await self._ask(request, asked)
        return reply(detokenized_body(text.text))

    async def tokenizer_info(self, request: Request) -> Response:
        """Answer what is known of the tokenizer of a model, the default one without ``model``."""
        info = self.info(request.query_params.get("model", ""))
        return reply(tokenizer_body(await self._ask(request, GetTokenizerInfo(info.name)), info.max_context))

    async def rendered(self, model: str, asked: ChatRequest, request: Request) -> Conversation:
        """Return a request's prompt, as the model that the client names reads it. Raises NotFound, Unavailable."""
        tenant = request.scope[TENANT_KEY]
        target = await self.chat.serving.target(model, tenant)
        async with self.sessions.open(tenant, asked) as calls:
            with transport_in_force(calls):
                return await rendered(replace(asked, model=target.model), with_text=True)

    async def _ask(self, request: Request, asked: Any) -> Any:
        async with self.sessions.open(request.scope[TENANT_KEY], asked) as calls:
            return await calls.call(asked)

    def info(self, name: str = "") -> ModelInfo:
        """Return a served model, the default one for "". Raises NotFound."""
        wanted = self.chat.serving.resolve_alias(name)
        for info in self.chat.runtime.models.models:
            if wanted in ("", info.name):
                return info
        raise unknown_model(name)


def _model_query(request: Request) -> ModelQuery:
    """Return which models a client asks for. Raises InvalidRequest, which names the parameter."""
    query = request.query_params
    limit = query.get("limit", str(LISTED))
    if not (limit.isascii() and limit.isdecimal() and len(limit) <= MAX_DIGITS):
        raise invalid("limit", "limit: it must be a number")
    lifecycles = [*query.getlist("lifecycle"), *query.getlist("lifecycle[]")]
    return ModelQuery(int(limit), query.get("after_id", ""), query.get("before_id", ""), lifecycles)
