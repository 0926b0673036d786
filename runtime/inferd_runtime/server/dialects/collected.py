"""All events of an answer put together, for clients that do not stream."""

from __future__ import annotations

from dataclasses import dataclass, field

from inferd.chat import (
    ChatEvent,
    ChoiceFinished,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    TokenScore,
    ToolArguments,
    ToolCall,
    ToolCallStarted,
    UsageReport,
)


@dataclass
class CollectedChoice:
    """One of the answers. ``reason`` None: it is not finished. ``text_scores``: those of ``scores`` that are the text's."""

    text: str = ""
    reasoning: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    scores: list[TokenScore] = field(default_factory=list)
    text_scores: list[TokenScore] = field(default_factory=list)
    reason: FinishReason | None = None
    stopped_by: str = ""
    stop_token: int | None = None


@dataclass
class CollectedAnswer:
    """The answers to one request, and what they used together."""

    choices: list[CollectedChoice]
    usage: UsageReport = field(default_factory=lambda: UsageReport(0, 0))

    @classmethod
    def of(cls, choices: int) -> CollectedAnswer:
        """Return so many answers without text."""
        return cls([CollectedChoice() for _ in range(choices)])

    def add(self, event: ChatEvent) -> None:
        """Add an event to the answer that it belongs to."""
        if isinstance(event, UsageReport):
            self.usage = event
            return
        choice = self.choices[event.choice]
        match event:
            case TextDelta():
                choice.text += event.text
                choice.tokens += event.tokens
                choice.scores += event.scores
                choice.text_scores += event.scores
            case ReasoningDelta():
                choice.reasoning += event.text
                choice.tokens += event.tokens
                choice.scores += event.scores
            case ToolCallStarted():
                choice.calls.append(ToolCall(event.id, event.name, ""))
            case ToolArguments():
                call = choice.calls[event.call]
                choice.calls[event.call] = ToolCall(call.id, call.name, call.arguments + event.text)
            case ChoiceFinished():
                choice.reason, choice.stopped_by, choice.stop_token = event.reason, event.stopped_by, event.stop_token
