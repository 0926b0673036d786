"""All events of an answer put together, for clients that do not stream."""

from __future__ import annotations

from dataclasses import dataclass, field

from inferd.chat import (
    ChatEvent,
    ChoiceFinished,
    FinishReason,
    PromptScores,
    ReasoningDelta,
    TextDelta,
    TokenScore,
    ToolArguments,
    ToolCall,
    ToolCallStarted,
    UsageReport,
)
from inferd_runtime.server.dialects.packed_scores import PackedScores


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

    text_pieces: list[str] = field(default_factory=list)
    reasoning_pieces: list[str] = field(default_factory=list)
    open_calls: list[CollectedCall] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    packed: PackedScores = field(default_factory=PackedScores)
    packed_prompt: PackedScores = field(default_factory=PackedScores)
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
    def scores(self) -> list[TokenScore]:
        """Return the log-probabilities so far."""
        return self.packed.read()

    @property
    def text_scores(self) -> list[TokenScore]:
        """Return those of the text."""
        return self.packed.read(text_only=True)

    @property
    def prompt_scores(self) -> list[TokenScore]:
        """Return those of the prompt."""
        return self.packed_prompt.read()

    @property
    def calls(self) -> list[ToolCall]:
        """Return the calls so far."""
        return [ToolCall(call.id, call.name, "".join(call.pieces)) for call in self.open_calls]


@dataclass
class CollectedAnswer:
    """The answers to one request, and what they used together."""

    choices: list[CollectedChoice]
    usage: UsageReport = field(default_factory=lambda: UsageReport(0, 0))

    @classmethod
    def of(cls, choices: int) -> CollectedAnswer:
        """Return so many answers without text."""
        return cls([CollectedChoice() for _ in range(choices)])

    @property
    def scored(self) -> int:
        """How many tokens have log-probabilities."""
        return sum(choice.packed.count + choice.packed_prompt.count for choice in self.choices)

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
                choice.packed.add(event.scores)
            case PromptScores():
                choice.packed_prompt.add(event.scores)
            case ReasoningDelta():
                choice.reasoning_pieces.append(event.text)
                choice.tokens += event.tokens
                choice.packed.add(event.scores, of_text=False)
            case ToolCallStarted():
                choice.open_calls.append(CollectedCall(event.id, event.name))
            case ToolArguments():
                choice.open_calls[event.call].pieces.append(event.text)
            case ChoiceFinished():
                choice.reason, choice.stopped_by, choice.stop_token = event.reason, event.stopped_by, event.stop_token
