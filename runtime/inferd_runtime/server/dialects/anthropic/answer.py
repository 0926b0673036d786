"""Answers in Anthropic's shape: a message of blocks, whole or as server-sent events."""

from __future__ import annotations

import hashlib
import json
import secrets
from typing import Any, Literal

from inferd.chat import (
    ChatEvent,
    ChatRequest,
    ChoiceFinished,
    FinishReason,
    PromptScores,
    ReasoningDelta,
    TextDelta,
    ToolArguments,
    ToolCall,
    ToolCallStarted,
    UsageReport,
)
from inferd.partial import finished_members
from inferd.protocol import InferdError
from inferd_runtime.server.dialects.anthropic.errors import error_body
from inferd_runtime.server.dialects.collected import CollectedAnswer
from inferd_runtime.server.dialects.server_sent import named_event

STOP_REASONS: dict[FinishReason, str] = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
SIGNATURE_CHARACTERS = 32
BlockKind = Literal["text", "thinking", "tool_use"]


def new_message_id() -> str:
    """Return an id for a message."""
    return f"msg_{secrets.token_hex(12)}"


class AnthropicExchange:
    """A request of ``/v1/messages`` and its answer. ``hides_thinking``: what the model thinks is left out, except its block."""

    def __init__(self, model: str, request: ChatRequest, request_id: str = "", hides_thinking: bool = False) -> None:
        self.model = model
        self.request = request
        self.output_field = "output_config.format"
        self.streams = request.stream
        self.holds = False
        self._request_id = request_id
        self._hides_thinking = hides_thinking
        self._id = new_message_id()
        self._stream = _BlockStream(hides_thinking)
        self._end: ChoiceFinished | None = None
        self._usage = UsageReport(0, 0)

    def opening(self) -> bytes:
        """Return the beginning of the message. What was found of the prompt is told at the end."""
        start = {"type": "message_start", "message": self._message([], None, self._usage)}
        return named_event("message_start", start) + named_event("ping", {"type": "ping"})

    def chunks(self, event: ChatEvent) -> bytes:
        """Return the events of blocks that an event of the answer becomes."""
        match event:
            case UsageReport():
                self._usage = event
                return b""
            case PromptScores():
                return b""
            case ChoiceFinished():
                self._end = event
                return self._stream.close()
            case _:
                return self._stream.add(event)

    def closing(self) -> bytes:
        """Return the end: why the message ended, and what it used."""
        delta = {**_stop(self._end), "stop_details": None, "container": None}
        usage = {
            key: value
            for key, value in usage_json(self._usage).items()
            if key not in ("service_tier", "cache_creation")
        }
        end = {"type": "message_delta", "delta": delta, "usage": usage}
        return (
            self._stream.close()
            + named_event("message_delta", end)
            + named_event("message_stop", {"type": "message_stop"})
        )

    def failure(self, error: InferdError) -> bytes:
        """Return the end of a stream that broke off."""
        return named_event("error", error_body(error, self._request_id))

    def whole(self) -> CollectedAnswer:
        """Return the whole message, of which nothing is known yet."""
        return CollectedAnswer(1, self._body)

    def _body(self, answer: CollectedAnswer) -> dict[str, Any]:
        choice = answer.choices[0]
        blocks: list[dict[str, Any]] = []
        if choice.reasoning:
            thinking = "" if self._hides_thinking else choice.reasoning
            blocks.append({"type": "thinking", "thinking": thinking, "signature": signature(choice.reasoning)})
        if choice.text:
            blocks.append({"type": "text", "text": choice.text})
        blocks += [_tool_use(call) for call in choice.calls]
        end = ChoiceFinished(choice.reason or "stop", 0, choice.stopped_by)
        return self._message(blocks, end, answer.usage)

    def _message(self, content: list[dict[str, Any]], end: ChoiceFinished | None, usage: UsageReport) -> dict[str, Any]:
        return {
            "id": self._id, "type": "message", "role": "assistant", "model": self.model, "content": content, **_stop(end),
            "stop_details": None, "container": None, "usage": usage_json(usage),
        }  # fmt: skip


class _BlockStream:
    """Makes blocks of the answer's events: one is open at a time. What comes late for a call goes to its block."""

    def __init__(self, hides_thinking: bool) -> None:
        self._hides_thinking = hides_thinking
        self._next = 0
        self._open: BlockKind | None = None
        self._calls: dict[int, int] = {}
        """The blocks of calls, by the calls' numbers."""
        self._thought: list[str] = []

    def add(self, event: TextDelta | ReasoningDelta | ToolCallStarted | ToolArguments) -> bytes:
        """Return what an event becomes."""
        match event:
            case ToolCallStarted():
                self._calls[event.call] = self._next
                block = {"type": "tool_use", "id": event.id, "name": event.name, "input": {}}
                return self.close() + self._start("tool_use", block)
            case ToolArguments(call=call) if call in self._calls:
                return self._delta(self._calls[call], {"type": "input_json_delta", "partial_json": event.text})
            case TextDelta(text=text) if text:
                return self._enter("text", {"type": "text", "text": ""}) + self._delta(
                    self._next - 1, {"type": "text_delta", "text": text}
                )
            case ReasoningDelta(text=text) if text:
                return self._think(text)
        return b""

    def close(self) -> bytes:
        """Return the end of the block that is open, if there is one."""
        kind, self._open = self._open, None
        if kind is None:
            return b""
        signed = b""
        if kind == "thinking":
            delta = {"type": "signature_delta", "signature": signature("".join(self._thought))}
            signed, self._thought = self._delta(self._next - 1, delta), []
        stopped = {"type": "content_block_stop", "index": self._next - 1}
        return signed + named_event("content_block_stop", stopped)

    def _think(self, text: str) -> bytes:
        started = self._enter("thinking", {"type": "thinking", "thinking": "", "signature": ""})
        self._thought.append(text)
        if self._hides_thinking:
            return started
        return started + self._delta(self._next - 1, {"type": "thinking_delta", "thinking": text})

    def _enter(self, kind: BlockKind, block: dict[str, Any]) -> bytes:
        return b"" if self._open == kind else self.close() + self._start(kind, block)

    def _start(self, kind: BlockKind, block: dict[str, Any]) -> bytes:
        self._open = kind
        index, self._next = self._next, self._next + 1
        return named_event(
            "content_block_start", {"type": "content_block_start", "index": index, "content_block": block}
        )

    def _delta(self, index: int, delta: dict[str, Any]) -> bytes:
        return named_event("content_block_delta", {"type": "content_block_delta", "index": index, "delta": delta})


def signature(thought: str) -> str:
    """Return the signature of a block of thinking. It says that the runtime wrote it; nothing depends on it."""
    return hashlib.sha256(thought.encode()).hexdigest()[:SIGNATURE_CHARACTERS]


def usage_json(usage: UsageReport) -> dict[str, Any]:
    """Return what was used. ``input_tokens`` are those of the prompt that were computed for this request."""
    return {
        "input_tokens": usage.prompt - usage.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
        "output_tokens": usage.completion,
        "output_tokens_details": {"thinking_tokens": usage.reasoning},
        "service_tier": "standard",
    }


def _tool_use(call: ToolCall) -> dict[str, Any]:
    """Return a call's block. Where tokens ran out, which ``stop_reason`` says, it has what is complete of the arguments. A
    number at the end may go on: it is not.
    """
    try:
        arguments = json.loads(call.arguments or "{}")
    except ValueError:
        arguments = finished_members(call.arguments)
    return {
        "type": "tool_use",
        "id": call.id,
        "name": call.name,
        "input": arguments if isinstance(arguments, dict) else {},
    }


def _stop(end: ChoiceFinished | None) -> dict[str, Any]:
    if end is None:
        return {"stop_reason": None, "stop_sequence": None}
    if end.stopped_by:
        return {"stop_reason": "stop_sequence", "stop_sequence": end.stopped_by}
    return {"stop_reason": STOP_REASONS[end.reason], "stop_sequence": None}
