"""What chunks and whole answers of both routes have in common: ids, usage, server-sent events."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from inferd.chat import ChatEvent, ChatRequest, ChoiceFinished, ReasoningDelta, TextDelta, TokenScore, UsageReport
from inferd.protocol import InferdError
from inferd_runtime import __version__
from inferd_runtime.server.dialects.openai.common_fields import Reporting, stop_reason
from inferd_runtime.server.dialects.openai.errors import error_body

FINGERPRINT = f"fp_inferd_{__version__}"
"""What OpenAI calls the serving configuration: the version decides which tokens a seed draws."""
LOWEST_LOGPROB = -9999.0
DONE = b"data: [DONE]\n\n"


def sse(value: Any) -> bytes:
    """Return a server-sent event without a name."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def encoded(value: Any) -> msgspec.Raw:
    """Return the JSON of what an answer repeats."""
    return msgspec.Raw(msgspec.json.encode(value))


def shown_logprob(score: TokenScore) -> float:
    """Return a token's log-probability as JSON can hold it: one that is impossible, or has none, has OpenAI's lowest."""
    return LOWEST_LOGPROB if score.logprob is None else max(score.logprob, LOWEST_LOGPROB)


def by_id(scores: Sequence[TokenScore]) -> list[TokenScore]:
    """Return scores that name tokens by their ids, as vLLM does where a client asks for that."""
    return [replace(score, text=f"token_id:{score.token}", top=by_id(score.top)) for score in scores]


def prompt_columns(scores: Sequence[TokenScore], text: str = "") -> dict[str, list[Any]]:
    """Return what vLLM tells of a prompt: for each token the most likely ones at its place and itself, by their ids; null for
    the first, which has nothing before it.
    """
    told = [
        None if score.logprob is None else {str(each.token): _prompt_score(each) for each in (*score.top, score)}
        for score in scores
    ]
    return {"prompt_logprobs": told}


def _prompt_score(score: TokenScore) -> dict[str, Any]:
    return {"logprob": shown_logprob(score), "rank": score.rank, "decoded_token": score.text}


def usage_json(report: UsageReport) -> dict[str, Any]:
    """Return what was used, with all details that OpenAI names for text."""
    return {
        "prompt_tokens": report.prompt,
        "completion_tokens": report.completion,
        "total_tokens": report.prompt + report.completion,
        "prompt_tokens_details": {"cached_tokens": report.cached},
        "completion_tokens_details": {
            "reasoning_tokens": report.reasoning,
            "accepted_prediction_tokens": report.accepted_prediction,
            "rejected_prediction_tokens": report.rejected_prediction,
        },
    }


def ending(event: ChoiceFinished, request: ChatRequest) -> dict[str, Any]:
    """Return how an answer ended; ``stop_reason`` as vLLM tells it."""
    reason = stop_reason(event.stopped_by, event.stop_token, request)
    return {"finish_reason": event.reason, "stop_reason": reason}


@dataclass(frozen=True)
class AnswerHead:
    """What every chunk and the whole body begin with. ``created`` is in seconds since the epoch."""

    id: str
    created: int
    model: str

    def json(self, kind: str) -> dict[str, Any]:
        """Return the head of an object of a kind."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": FINGERPRINT,
        }


def answer_head(prefix: str, asked_id: str | None, request_id: str, model: str, created: float) -> AnswerHead:
    """Return the head of an answer; its id has the client's own request id in it, where there is one."""
    return AnswerHead(prefix + (asked_id or request_id or secrets.token_hex(16)), int(created), model)


class ChunkWriter:
    """Writes the chunks of a stream, with what the client wants to be told beside the text.

    The prompt's token ids are told in the first chunk that is written after they are known: of the stream, or
    (``prompt_in_choices``) of each answer, inside of it.
    """

    def __init__(self, head: AnswerHead, kind: str, reporting: Reporting, *, prompt_in_choices: bool = False) -> None:
        self._head = head
        self._kind = kind
        self._reporting = reporting
        self._report = UsageReport(0, 0)
        self._counted = 0
        self._prompt_in_choices = prompt_in_choices
        self._told: set[int] = set()
        self._prompt: msgspec.Raw | None = None

    def count(self, event: ChatEvent) -> None:
        """Take note of what an event says about the usage."""
        if isinstance(event, UsageReport):
            self._report = event
        elif isinstance(event, TextDelta | ReasoningDelta):
            self._counted += len(event.tokens)

    def chunk(self, choice: dict[str, Any]) -> bytes:
        """Return a chunk about one of the answers."""
        value = self._head.json(self._kind) | {"choices": [choice]}
        if self._reporting.token_ids and self._report.prompt_tokens:
            self._tell_prompt(choice if self._prompt_in_choices else value, choice["index"])
        if self._reporting.continuous:
            value["usage"] = usage_json(self._so_far())
        elif self._reporting.usage:
            value["usage"] = None
        return sse(value)

    def failure(self, error: InferdError) -> bytes:
        """Return the end of a stream that broke off."""
        return sse(error_body(error)) + DONE

    def closing(self) -> bytes:
        """Return the end of a stream, with the usage where it was asked for."""
        if not self._reporting.usage:
            return DONE
        return sse(self._head.json(self._kind) | {"choices": [], "usage": usage_json(self._report)}) + DONE

    def _tell_prompt(self, place: dict[str, Any], choice: int) -> None:
        told_for = choice if self._prompt_in_choices else 0
        if told_for not in self._told:
            self._told.add(told_for)
            place["prompt_token_ids"] = self._prompt = self._prompt or encoded(self._report.prompt_tokens)

    def _so_far(self) -> UsageReport:
        """Return what was reported, and the tokens that have come since."""
        return replace(self._report, completion=max(self._report.completion, self._counted))
