"""What a run of tools tells while it goes on, in order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from inferd.chat.events import ReasoningDelta, TextDelta, ToolArguments, ToolCallStarted
from inferd.chat.request import ToolCall


@dataclass(frozen=True)
class ToolResult:
    """A call has ended, with the text that the model gets. ``is_error``: it says what went wrong."""

    call: ToolCall
    text: str
    is_error: bool = False


@dataclass(frozen=True)
class ToolAnswer:
    """The end: what the model said last, what it thought before that, and all results, in the order of their calls.

    ``rounds``: how often it spoke. ``finish``: "length" where its tokens were used up.
    """

    text: str
    reasoning: str = ""
    results: list[ToolResult] = field(default_factory=list)
    rounds: int = 1
    finish: Literal["stop", "length"] = "stop"


ToolEvent: TypeAlias = TextDelta | ReasoningDelta | ToolCallStarted | ToolArguments | ToolCall | ToolResult | ToolAnswer
"""More text or reasoning; a call that begins, more of its arguments, and the whole call before it runs; its result; the end."""
