"""``/v1/completions``: reading a request, and its answers as chunks or as a whole."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from inferd.chat import ChatEvent, ChatRequest, ChoiceFinished, FinishReason, TextDelta, TokenScore, UsageReport
from inferd.chat.token_scores import TokenPlaces
from inferd.protocol import InferdError
from inferd_runtime.server.dialects.collected import CollectedAnswer, CollectedChoice
from inferd_runtime.server.dialects.exchange import ClientHeaders
from inferd_runtime.server.dialects.openai.answer_parts import (
    AnswerHead,
    ChunkWriter,
    answer_head,
    by_id,
    encoded,
    ending,
    prompt_columns,
    shown_logprob,
    usage_json,
)
from inferd_runtime.server.dialects.openai.common_fields import Reporting, reporting, stop_reason
from inferd_runtime.server.dialects.openai.completion_fields import completion_requests, read_completion_fields
from inferd_runtime.server.dialects.reading import read_object

KIND = "text_completion"


def read_completions(body: bytes, headers: ClientHeaders) -> CompletionExchange:
    """The :data:`Dialect` of ``POST /v1/completions``."""
    asked = read_completion_fields(read_object(body))
    head = answer_head("cmpl-", asked.request_id, headers.request_id, asked.model, time.time())
    return CompletionExchange(completion_requests(asked, headers), head, reporting(asked))


class CompletionExchange:
    """A request for texts; see :class:`~inferd_runtime.server.dialects.exchange.Exchange`.

    ``requests`` has one for each prompt, and ``request`` is the first: their events go through :class:`PromptMerger`, which
    makes them those of one answer with ``choices`` choices.
    """

    def __init__(self, requests: list[ChatRequest], head: AnswerHead, told: Reporting) -> None:
        self.model = head.model
        self.requests = requests
        self.request = requests[0]
        self.streams = self.request.stream
        self.holds = False
        self.output_field = told.output_field
        self.choices = len(requests) * self.request.n
        self._head = head
        self._told = told
        self._writer = ChunkWriter(head, KIND, told, prompt_in_choices=True)
        self._lengths = [0] * self.choices

    def opening(self) -> bytes:
        """Return nothing: the first text begins the stream."""
        return b""

    def chunks(self, event: ChatEvent) -> bytes:
        """Return the chunk of an event. What a model thinks, and calls of tools, have no place in a text."""
        self._writer.count(event)
        match event:
            case TextDelta():
                return self._text(event)
            case ChoiceFinished():
                ended = replace(event, reason=_reason(event.reason))
                return self._chunk(event.choice, "", **ending(ended, self.request))
            case _:
                return b""

    def closing(self) -> bytes:
        """Return the chunk with the usage, where it was asked for, and the end."""
        return self._writer.closing()

    def failure(self, error: InferdError) -> bytes:
        """Return the error, and the end."""
        return self._writer.failure(error)

    def whole(self) -> CollectedAnswer:
        """Return the whole answer, of which nothing is known yet."""
        return CollectedAnswer(
            self.choices, self._body, lambda: _Columns(by_ids=self._told.tokens_as_ids), prompt_columns
        )

    def _body(self, answer: CollectedAnswer) -> dict[str, Any]:
        value = self._head.json(KIND)
        value["choices"] = [self._choice(index, choice) for index, choice in enumerate(answer.choices)]
        if self._told.token_ids:
            prompt = encoded(answer.usage.prompt_tokens or None)
            for choice in value["choices"]:
                choice["prompt_token_ids"] = prompt
        if self.request.prompt_logprobs is not None:
            for first in range(0, self.choices, self.request.n):  # the first answer to each prompt
                told = answer.choices[first].prompt_scores.json()
                for choice in value["choices"][first : first + self.request.n]:
                    choice |= told
        return value | {"usage": usage_json(answer.usage)}

    def _text(self, event: TextDelta) -> bytes:
        shown = event.tokens if self._told.token_ids else []
        start, self._lengths[event.choice] = self._lengths[event.choice], self._lengths[event.choice] + len(event.text)
        if not event.text and not shown and not event.scores:
            return b""
        extra: dict[str, Any] = {"token_ids": shown} if self._told.token_ids else {}
        if event.scores:
            extra["logprobs"] = _Columns(start, by_ids=self._told.tokens_as_ids)(event.scores, event.text)
        return self._chunk(event.choice, event.text, **extra)

    def _chunk(self, choice: int, text: str, **extra: Any) -> bytes:
        return self._writer.chunk({"index": choice, "text": text, "logprobs": None, "finish_reason": None, **extra})

    def _choice(self, index: int, choice: CollectedChoice) -> dict[str, Any]:
        value: dict[str, Any] = {
            "index": index,
            "text": choice.text,
            "logprobs": None if self.request.logprobs is None else choice.scores.json(),
            "finish_reason": _reason(choice.reason or "stop"),
            "stop_reason": stop_reason(choice.stopped_by, choice.stop_token, self.request),
        }
        return value | ({"token_ids": choice.tokens} if self._told.token_ids else {})


class PromptMerger:
    """Makes one answer of those to several prompts: choices are counted through, usage is added up. Synchronous."""

    def __init__(self, prompts: int, n: int) -> None:
        self._n = n
        self._reports = [UsageReport(0, 0)] * prompts

    def event(self, prompt: int, event: ChatEvent) -> ChatEvent:
        """Return an event of the answer to one prompt as an event of the whole."""
        if isinstance(event, UsageReport):
            self._reports[prompt] = event
            return _sum(self._reports)
        return replace(event, choice=prompt * self._n + event.choice)


def _sum(reports: list[UsageReport]) -> UsageReport:
    """Return all usage together. Token ids are told of one prompt only."""
    counts = (
        "prompt", "completion", "cached", "reasoning", "drafted", "accepted", "accepted_prediction", "rejected_prediction",
    )  # fmt: skip
    total = UsageReport(**{name: sum(getattr(each, name) for each in reports) for name in counts})
    return replace(total, prompt_tokens=reports[0].prompt_tokens) if len(reports) == 1 else total


def _reason(reason: FinishReason) -> FinishReason:
    """Return how a text ended, which cannot be with a tool's call."""
    return "stop" if reason == "tool_calls" else reason


class _Columns:
    """Writes log-probabilities as lists side by side. The token itself is always among the most likely ones of its place; the
    first of a prompt has none, and null for them. ``start``: where in the answer the next text begins.
    """

    def __init__(self, start: int = 0, *, by_ids: bool) -> None:
        self._start = start
        self._by_ids = by_ids

    def __call__(self, scores: Sequence[TokenScore], text: str) -> dict[str, list[Any]]:
        """Return the lists of the tokens of the next text."""
        places, self._start = TokenPlaces(text, self._start), self._start + len(text)
        named = by_id(scores) if self._by_ids else scores
        return {
            "tokens": [score.text for score in named],
            "token_logprobs": [None if score.logprob is None else shown_logprob(score) for score in named],
            "top_logprobs": [_top_logprobs(score) for score in named],
            "text_offset": [places.of(score) for score in scores],
        }


def _top_logprobs(score: TokenScore) -> dict[str, float] | None:
    return None if score.logprob is None else {each.text: shown_logprob(each) for each in (*score.top, score)}
