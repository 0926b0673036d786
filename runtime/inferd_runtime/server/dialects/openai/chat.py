"""``/v1/chat/completions``: reading a request, and its answer as chunks or as a whole."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from inferd.chat import (
    ChatEvent,
    ChatRequest,
    ChoiceFinished,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    TokenScore,
    ToolArguments,
    ToolCall,
    ToolCallStarted,
)
from inferd.protocol import InferdError
from inferd_runtime.server.dialects.collected import CollectedAnswer, CollectedChoice
from inferd_runtime.server.dialects.custom_calls import CustomCalls, input_of
from inferd_runtime.server.dialects.exchange import ClientHeaders
from inferd_runtime.server.dialects.openai.answer_parts import (
    AnswerHead,
    ChunkWriter,
    answer_head,
    by_id,
    ending,
    prompt_columns,
    shown_logprob,
    usage_json,
)
from inferd_runtime.server.dialects.openai.chat_fields import chat_request, read_chat_fields
from inferd_runtime.server.dialects.openai.common_fields import Reporting, reporting, stop_reason
from inferd_runtime.server.dialects.reading import read_object

WHOLE, CHUNK = "chat.completion", "chat.completion.chunk"


def read_chat(body: bytes, headers: ClientHeaders, clock: Callable[[], float] = time.time) -> ChatCompletionExchange:
    """The :data:`Dialect` of ``POST /v1/chat/completions``. ``clock`` returns seconds since the epoch."""
    asked = read_chat_fields(read_object(body))
    head = answer_head("chatcmpl-", asked.request_id, headers.request_id, asked.model, clock())
    return ChatCompletionExchange(chat_request(asked, headers), head, reporting(asked), older=bool(asked.functions))


class ChatCompletionExchange:
    """A request for chat answers; see :class:`~inferd_runtime.server.dialects.exchange.Exchange`.

    ``older``: it has ``functions`` in place of tools, and so has the answer a ``function_call``.
    """

    def __init__(self, request: ChatRequest, head: AnswerHead, told: Reporting, *, older: bool = False) -> None:
        self.model = head.model
        self.request = request
        self.streams = request.stream
        self.holds = False
        self.output_field = told.output_field
        self._head = head
        self._told = told
        self._older = older
        self._writer = ChunkWriter(head, CHUNK, told)
        self._custom = CustomCalls(request.tools)

    def opening(self) -> bytes:
        """Return a chunk with the role for each of the answers."""
        first = {"role": "assistant", "content": ""}
        return b"".join(self._chunk(choice, first) for choice in range(self.request.n))

    def chunks(self, event: ChatEvent) -> bytes:
        """Return the chunk of an event. What was used is told at the end."""
        self._writer.count(event)
        match event:
            case TextDelta():
                return self._text(event, {"content": event.text})
            case ReasoningDelta():
                return self._text(event, {"reasoning": event.text, "reasoning_content": event.text})
            case ToolCallStarted() | ToolArguments():
                delta = self._call_delta(event)
                return self._chunk(event.choice, delta) if delta else b""
            case ChoiceFinished():
                ended = ending(event, self.request)
                return self._chunk(event.choice, {}, **ended | {"finish_reason": self._reason(event.reason)})
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
        return CollectedAnswer(self.request.n, self._body, lambda: self._columns, prompt_columns)

    def _body(self, answer: CollectedAnswer) -> dict[str, Any]:
        value = self._head.json(WHOLE)
        value["choices"] = [self._choice(index, choice) for index, choice in enumerate(answer.choices)]
        value["usage"] = usage_json(answer.usage)
        if self._told.token_ids:
            value["prompt_token_ids"] = answer.usage.prompt_tokens or None
        if self.request.prompt_logprobs is not None:
            value |= answer.choices[0].prompt_scores.json()
        return value

    def _call_delta(self, event: ToolCallStarted | ToolArguments) -> dict[str, Any]:
        """Return what a call grows by: nothing for arguments of a custom tool that are no text of its own."""
        if isinstance(event, ToolCallStarted):
            write = _custom_json if self._custom.begin(event) else _call_json
            call = write(event.id, event.name)
        elif (text := self._custom.read(event)) is None:
            call = {"function": {"arguments": event.text}}
        elif text:
            call = {"custom": {"input": text}}
        else:
            return {}
        return {"function_call": call["function"]} if self._older else {"tool_calls": [{"index": event.call, **call}]}

    def _reason(self, reason: FinishReason) -> str:
        return "function_call" if self._older and reason == "tool_calls" else reason

    def _text(self, event: TextDelta | ReasoningDelta, delta: dict[str, Any]) -> bytes:
        shown = event.tokens if self._told.token_ids else []
        if not event.text and not shown and not event.scores:
            return b""
        extra: dict[str, Any] = {"token_ids": shown} if self._told.token_ids else {}
        logprobs = {**self._columns(event.scores), "refusal": None} if event.scores else None
        return self._chunk(event.choice, delta, logprobs=logprobs, **extra)

    def _chunk(self, choice: int, delta: dict[str, Any], **extra: Any) -> bytes:
        return self._writer.chunk({"index": choice, "delta": delta, "logprobs": None, "finish_reason": None, **extra})

    def _choice(self, index: int, choice: CollectedChoice) -> dict[str, Any]:
        value = {
            "index": index,
            "message": self._message(choice),
            "logprobs": None if self.request.logprobs is None else {**choice.scores.json(), "refusal": None},
            "finish_reason": self._reason(choice.reason or "stop"),
            "stop_reason": stop_reason(choice.stopped_by, choice.stop_token, self.request),
        }
        return value | ({"token_ids": choice.tokens} if self._told.token_ids else {})

    def _columns(self, scores: Sequence[TokenScore], text: str = "") -> dict[str, list[Any]]:
        """Return what is told of some tokens."""
        named = by_id(scores) if self._told.tokens_as_ids else scores
        return {"content": [{**_score(each), "top_logprobs": [_score(top) for top in each.top]} for each in named]}

    def _message(self, choice: CollectedChoice) -> dict[str, Any]:
        """Return an answer's message. Its content is null where there are calls and no text."""
        content = None if choice.calls and not choice.text else choice.text
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None, "annotations": []}
        if choice.reasoning:
            message |= {"reasoning": choice.reasoning, "reasoning_content": choice.reasoning}
        calls = [self._whole_call(call, cut=choice.reason == "length") for call in choice.calls]
        if calls:
            message |= {"function_call": calls[0]["function"]} if self._older else {"tool_calls": calls}
        return message

    def _whole_call(self, call: ToolCall, *, cut: bool) -> dict[str, Any]:
        """Return a call. A function's without arguments has the empty object, unless the answer was ``cut`` before them."""
        if call.name in self._custom.names:
            return _custom_json(call.id, call.name, input_of(call.arguments))
        return _call_json(call.id, call.name, call.arguments or ("" if cut else "{}"))


def _call_json(call_id: str, name: str, arguments: str = "") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _custom_json(call_id: str, name: str, text: str = "") -> dict[str, Any]:
    return {"id": call_id, "type": "custom", "custom": {"name": name, "input": text}}


def _score(score: TokenScore) -> dict[str, Any]:
    return {"token": score.text, "bytes": score.data, "logprob": shown_logprob(score)}
