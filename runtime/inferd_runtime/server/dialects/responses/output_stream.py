"""The output of a response as it grows: its items, and the events that tell of each. Synchronous, used for one answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from inferd.chat import ChatEvent, ReasoningDelta, TextDelta, TokenScore, ToolArguments, ToolCallStarted
from inferd_runtime.server.dialects.custom_calls import CustomCalls
from inferd_runtime.server.dialects.responses.ids import new_id
from inferd_runtime.server.dialects.responses.items import Item, call_item, custom_call_item
from inferd_runtime.server.dialects.responses.response_object import (
    logprob_columns,
    said_item,
    text_part,
    thought_item,
    thought_part,
)
from inferd_runtime.server.dialects.responses.stored import KeptEvents
from inferd_runtime.server.dialects.written_scores import WrittenScores

WriteEvent = Callable[[str, Mapping[str, Any]], bytes]
"""Returns an event, of a name and data that have the name, too, as it is sent."""


class NumberedEvents:
    """Makes events, each with its number in the stream; without ``write`` they are all empty: nobody gets them.

    ``kept`` takes them all, too.
    """

    def __init__(self, write: WriteEvent | None, kept: KeptEvents | None = None) -> None:
        self._write = write
        self._kept = kept
        self._next = 0

    def event(self, name: str, /, **data: Any) -> bytes:
        """Return the next event."""
        if self._write is None:
            return b""
        number, self._next = self._next, self._next + 1
        event = self._write(name, {"type": name, "sequence_number": number, **data})
        if self._kept is not None:
            self._kept.add(event)
        return event


@dataclass
class _OpenItem:
    """An item that is not complete, whose text is in pieces until it is asked for. ``call`` is -1 for one that is no call;
    ``custom`` is a call of a custom tool.
    """

    kind: Literal["message", "reasoning", "call", "custom"]
    id: str
    index: int
    pieces: list[str] = field(default_factory=list)
    scores: WrittenScores = field(default_factory=lambda: WrittenScores(logprob_columns))
    call: int = -1
    call_id: str = ""
    name: str = ""
    namespace: str | None = None

    @property
    def text(self) -> str:
        """Return what it says so far."""
        return "".join(self.pieces)

    def item(self, status: str) -> Item:
        """Return the item; one in progress has no content, since that is told by events of its own."""
        begun = status == "in_progress"
        match self.kind:
            case "message":
                return said_item(self.id, status, [] if begun else [self.part()])
            case "reasoning":
                return thought_item(self.id, status, [] if begun else [self.part()])
            case "call":
                arguments = "" if begun else self.text
                return call_item(self.call_id, self.name, arguments, self.id, status, self.namespace)
            case "custom":
                text = "" if begun else self.text
                return custom_call_item(self.call_id, self.name, text, self.id, status, self.namespace)

    def part(self) -> dict[str, Any]:
        """Return what the item holds."""
        return text_part(self.text, self.scores) if self.kind == "message" else thought_part(self.text)

    @property
    def place(self) -> dict[str, Any]:
        """Return where the item is, and for all but calls which part of it."""
        place: dict[str, Any] = {"item_id": self.id, "output_index": self.index}
        return place if self.call >= 0 else {**place, "content_index": 0}


class OutputStream:
    """Takes an answer's events in order. One item is open at a time; ``items`` are those that are complete.

    ``names``: namespace and name of tools, by what the model calls them; ``custom`` tells calls of custom tools apart.
    """

    def __init__(self, events: NumberedEvents, names: Mapping[str, tuple[str, str]], custom: CustomCalls) -> None:
        self.items: list[Item] = []
        self._custom = custom
        self._names = names
        self._events = events
        self._open: _OpenItem | None = None

    def add(self, event: ChatEvent) -> bytes:
        """Return the events that an event of the answer becomes."""
        match event:
            case TextDelta(text=text, scores=scores) if text or scores:
                return self._enter("message") + self._say(text, scores)
            case ReasoningDelta(text=text) if text:
                return self._enter("reasoning") + self._more("response.reasoning_text.delta", text)
            case ToolCallStarted():
                return self.close() + self._begin(self._called(event))
            case ToolArguments(call=call) if self._open is not None and self._open.call == call:
                return self._argue(event)
        return b""

    def _called(self, event: ToolCallStarted) -> _OpenItem:
        """Return the item of a call that begins."""
        namespace, name = self._names.get(event.name, (None, event.name))
        is_custom = self._custom.begin(event)
        return _OpenItem(
            "custom" if is_custom else "call",
            new_id("ctc" if is_custom else "fc"),
            len(self.items),
            call=event.call,
            call_id=event.id,
            name=name,
            namespace=namespace,
        )

    def _argue(self, event: ToolArguments) -> bytes:
        text = self._custom.read(event)
        if text is None:
            return self._more("response.function_call_arguments.delta", event.text) if event.text else b""
        return self._more("response.custom_tool_call_input.delta", text) if text else b""

    def close(self, status: Literal["completed", "incomplete"] = "completed") -> bytes:
        """Return the end of the item that is open, if there is one."""
        one, self._open = self._open, None
        if one is None:
            return b""
        if one.kind == "call":
            one.pieces = [one.text or ("" if status == "incomplete" else "{}")]
            done = self._events.event(
                "response.function_call_arguments.done", **one.place, name=one.name, arguments=one.text
            )
        elif one.kind == "custom":
            done = self._events.event("response.custom_tool_call_input.done", **one.place, input=one.text)
        else:
            done = self._close_part(one)
        item = one.item(status)
        self.items.append(item)
        return done + self._events.event("response.output_item.done", output_index=one.index, item=item)

    def finish(self, status: Literal["completed", "incomplete"]) -> bytes:
        """Return the end of the output. An answer without anything is a message without text."""
        empty = self._enter("message") if not self.items and self._open is None else b""
        return empty + self.close(status)

    def _enter(self, kind: Literal["message", "reasoning"]) -> bytes:
        if self._open is not None and self._open.kind == kind:
            return b""
        closed = self.close()
        one = _OpenItem(kind, new_id("msg" if kind == "message" else "rs"), len(self.items))
        return (
            closed + self._begin(one) + self._events.event("response.content_part.added", **one.place, part=one.part())
        )

    def _begin(self, one: _OpenItem) -> bytes:
        self._open = one
        return self._events.event("response.output_item.added", output_index=one.index, item=one.item("in_progress"))

    def _say(self, text: str, scores: list[TokenScore]) -> bytes:
        assert self._open is not None
        self._open.scores.add(scores)
        return self._more("response.output_text.delta", text, **logprob_columns(scores))

    def _more(self, name: str, text: str, **data: Any) -> bytes:
        assert self._open is not None
        self._open.pieces.append(text)
        return self._events.event(name, **self._open.place, delta=text, **data)

    def _close_part(self, one: _OpenItem) -> bytes:
        part = one.part()
        if one.kind == "message":
            logprobs = part["logprobs"]
            done = self._events.event("response.output_text.done", **one.place, text=one.text, logprobs=logprobs)
        else:
            done = self._events.event("response.reasoning_text.done", **one.place, text=one.text)
        return done + self._events.event("response.content_part.done", **one.place, part=part)
