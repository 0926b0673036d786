"""What an answer is made of, in order: the only things that a program says to its client, whatever the client's dialect."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias

FinishReason = Literal["stop", "length", "tool_calls"]
KIND = "event"
REQUIRED = frozenset({"text", "call", "id", "name", "reason", "prompt", "completion"})


@dataclass(slots=True)
class TokenScore:
    """A token's text and log-probability, and those of the most likely ones at its place. ``data``: its bytes. Never changed.

    The first token of a prompt has nothing before it, and so no log-probability. ``rank``: 1 for the most likely; 0: not told.
    """

    token: int
    text: str
    data: list[int]
    logprob: float | None
    top: list[TokenScore] = field(default_factory=list)
    rank: int = 0


@dataclass(frozen=True)
class TextDelta:
    """More text of an answer. ``tokens`` are the tokens that it was made of, ``scores`` theirs where they were asked for."""

    kind: ClassVar[str] = "text"
    text: str
    choice: int = 0
    tokens: list[int] = field(default_factory=list)
    scores: list[TokenScore] = field(default_factory=list)


@dataclass(frozen=True)
class ReasoningDelta:
    """More of what the model thinks before it answers."""

    kind: ClassVar[str] = "reasoning"
    text: str
    choice: int = 0
    tokens: list[int] = field(default_factory=list)
    scores: list[TokenScore] = field(default_factory=list)


@dataclass(frozen=True)
class ToolCallStarted:
    """The model calls a tool. ``call`` counts an answer's calls from 0."""

    kind: ClassVar[str] = "tool_call"
    call: int
    id: str
    name: str
    choice: int = 0


@dataclass(frozen=True)
class ToolArguments:
    """More of the JSON text of a call's arguments."""

    kind: ClassVar[str] = "arguments"
    call: int
    text: str
    choice: int = 0


@dataclass(frozen=True)
class ChoiceFinished:
    """An answer is complete. ``stopped_by``: the stop string that ended it, "" for any other end; ``stop_token``: the token that
    did, the model's own end included.
    """

    kind: ClassVar[str] = "finish"
    reason: FinishReason
    choice: int = 0
    stopped_by: str = ""
    stop_token: int | None = None


@dataclass(frozen=True)
class UsageReport:
    """What all answers together have used so far, in tokens: the last report counts. ``cached`` of the prompt's were not
    computed again. ``prompt_tokens``: the prompt's token ids, where ``return_tokens`` asks for them. A report with the prompt
    may come before the text, so that streams can tell it.

    ``accepted_prediction`` and ``rejected_prediction`` are the tokens of ``prediction`` that did and did not stand.
    """

    kind: ClassVar[str] = "usage"
    prompt: int
    completion: int
    cached: int = 0
    reasoning: int = 0
    drafted: int = 0
    accepted: int = 0
    accepted_prediction: int = 0
    rejected_prediction: int = 0
    prompt_tokens: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class PromptScores:
    """The log-probabilities of the prompt's next tokens, where ``prompt_logprobs`` asks for them."""

    kind: ClassVar[str] = "prompt_scores"
    scores: list[TokenScore]
    choice: int = 0


ChatEvent: TypeAlias = (
    TextDelta | ReasoningDelta | ToolCallStarted | ToolArguments | ChoiceFinished | UsageReport | PromptScores
)
EVENT_TYPES: dict[str, type[Any]] = {
    each.kind: each
    for each in (TextDelta, ReasoningDelta, ToolCallStarted, ToolArguments, ChoiceFinished, UsageReport, PromptScores)
}


def to_message(event: ChatEvent) -> dict[str, Any]:
    """Return an event as the JSON object that a program sends: its kind under ``event``, and its fields except empty ones."""
    fields = {name: value for name, value in vars(event).items() if value or name in REQUIRED}
    if "scores" in fields:
        fields["scores"] = [_plain_score(score) for score in fields["scores"]]
    return {KIND: event.kind, **fields}


def _plain_score(score: TokenScore) -> dict[str, Any]:
    """Return what ``to_plain`` does, in a twentieth of the time: an answer may have hundreds of thousands."""
    return {
        "token": score.token,
        "text": score.text,
        "data": score.data,
        "logprob": score.logprob,
        "top": [_plain_score(each) for each in score.top],
        "rank": score.rank,
    }
