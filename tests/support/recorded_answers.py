"""Vendors' clients against the dialects alone: a transport that reads each request and answers it with recorded events."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import httpx2
import openai

from inferd.chat import (
    ChatEvent,
    ChoiceFinished,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    TokenScore,
    ToolArguments,
    ToolCallStarted,
    UsageReport,
)
from inferd.protocol import InferdError
from inferd_runtime.server.dialects.exchange import ClientHeaders, Dialect, Exchange
from inferd_runtime.server.dialects.openai.errors import error_reply_openai

USAGE = UsageReport(11, 7, cached=4, reasoning=2, accepted_prediction=3, rejected_prediction=1, prompt_tokens=[5, 6])


def text_events(*pieces: str, choice: int = 0, reason: FinishReason = "stop") -> list[ChatEvent]:
    """Return the events of an answer that comes in pieces, a token for each."""
    texts = [TextDelta(piece, choice, [100 + at]) for at, piece in enumerate(pieces)]
    return [*texts, ChoiceFinished(reason, choice)]


def call_events(name: str, *arguments: str, call: int = 0) -> list[ChatEvent]:
    """Return the events of a tool's call, its arguments in pieces."""
    return [ToolCallStarted(call, f"call_{call}", name), *(ToolArguments(call, piece) for piece in arguments)]


def scored(text: str, logprob: float = -0.25) -> TextDelta:
    """Return a token's text with its log-probability, and those of two at its place."""
    score = TokenScore(7, text, list(text.encode()), logprob)
    other = TokenScore(8, "other", list(b"other"), -2.0)
    return TextDelta(text, tokens=[7], scores=[TokenScore(7, text, list(text.encode()), logprob, [score, other])])


def thought(text: str) -> ReasoningDelta:
    """Return a piece of what a model thinks."""
    return ReasoningDelta(text)


class RecordedServer:
    """Answers every request with the same events, or with them up to an error. ``asked``: what was read, newest last."""

    def __init__(self, dialect: Dialect, events: Sequence[ChatEvent], error: InferdError | None = None) -> None:
        self._dialect = dialect
        self._events = [*events, *([] if error else [USAGE])]
        self._error = error
        self.asked: list[Exchange] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        """Answer a request as the gateway does, without anything between."""
        try:
            exchange = self._dialect(request.content, ClientHeaders("req-1"))
        except InferdError as error:
            reply = error_reply_openai(error)
            return httpx2.Response(reply.status, json=reply.body, headers=dict(reply.headers))
        self.asked.append(exchange)
        if exchange.streams:
            return httpx2.Response(200, content=self._stream(exchange), headers={"content-type": "text/event-stream"})
        answer = exchange.whole()
        for event in self._events:
            answer.add(event)
        return httpx2.Response(200, content=answer.body(), headers={"content-type": "application/json"})

    def _stream(self, exchange: Exchange) -> bytes:
        parts = [exchange.opening(), *(exchange.chunks(event) for event in self._events)]
        parts.append(exchange.failure(self._error) if self._error else exchange.closing())
        return b"".join(parts)


def openai_client(answer: Callable[[httpx2.Request], httpx2.Response]) -> openai.OpenAI:
    """Return OpenAI's own client, whose requests ``answer`` answers."""
    http = httpx2.Client(transport=httpx2.MockTransport(answer))
    return openai.OpenAI(api_key="unused", base_url="http://runtime/v1", http_client=http, max_retries=0)


def data_lines(stream: bytes) -> list[Any]:
    """Return what the events of a stream hold, "[DONE]" as it is."""
    lines = [block.removeprefix(b"data: ") for block in stream.split(b"\n\n") if block]
    return ["[DONE]" if line == b"[DONE]" else json.loads(line) for line in lines]
