"""All events of an answer put together, for clients that do not stream."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from inferd.chat import (
    ChatEvent,
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
from inferd_runtime.server.dialects.written_scores import Columns, WrittenScores, no_columns


@dataclass
class CollectedCall:
    """A call whose arguments are not joined yet."""

    id: str
    name: str
    pieces: list[str] = field(default_factory=list)


@dataclass
class CollectedChoice:
    """One of the answers. ``reason`` None: it is not finished.

    Texts are kept in pieces: adding each event's to a long one would copy the long one each time.
    """

    scores: WrittenScores
    prompt_scores: WrittenScores
    text_pieces: list[str] = field(default_factory=list)
    reasoning_pieces: list[str] = field(default_factory=list)
    open_calls: list[CollectedCall] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    reason: FinishReason | None = None
    stopped_by: str = ""
    stop_token: int | None = None

    @property
    def text(self) -> str:
        """Return the text so far."""
        return "".join(self.text_pieces)

    @property
    def reasoning(self) -> str:
        """Return what the model has thought so far."""
        return "".join(self.reasoning_pieces)

    @property
    def calls(self) -> list[ToolCall]:
        """Return the calls so far."""
        return [ToolCall(call.id, call.name, "".join(call.pieces)) for call in self.open_calls]


class CollectedAnswer:
    """The answers to one request, and what they used together; ``write`` makes them the JSON object that the client gets.

    ``columns`` and ``prompt_columns``: for each answer, what is written of its tokens, and of its prompt's.
    """

    def __init__(
        self,
        choices: int,
        write: Callable[[CollectedAnswer], dict[str, Any]],
        columns: Callable[[], Columns] = lambda: no_columns,
        prompt_columns: Columns = no_columns,
    ) -> None:
        self.choices = [
            CollectedChoice(WrittenScores(columns()), WrittenScores(prompt_columns)) for _ in range(choices)
        ]
        self.usage = UsageReport(0, 0)
        self._write = write

    def body(self) -> bytes:
        """Return the whole answer."""
        return msgspec.json.encode(self._write(self))

    def add(self, event: ChatEvent) -> None:
        """Add an event to the answer that it belongs to."""
        if isinstance(event, UsageReport):
            self.usage = event
            return
        choice = self.choices[event.choice]
        match event:
            case TextDelta():
                choice.text_pieces.append(event.text)
                choice.tokens += event.tokens
                choice.scores.add(event.scores, event.text)
            case PromptScores():
                choice.prompt_scores.add(event.scores)
            case ReasoningDelta():
                choice.reasoning_pieces.append(event.text)
                choice.tokens += event.tokens
                choice.scores.add(event.scores)
            case ToolCallStarted():
                choice.open_calls.append(CollectedCall(event.id, event.name))
            case ToolArguments():
                choice.open_calls[event.call].pieces.append(event.text)
            case ChoiceFinished():
                choice.reason, choice.stopped_by, choice.stop_token = event.reason, event.stopped_by, event.stop_token
