"""Answer chat requests with a program: the request, and the events that an answer is made of."""

from __future__ import annotations

from inferd.chat.events import (
    ChatEvent,
    ChoiceFinished,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    TokenScore,
    ToolArguments,
    ToolCallStarted,
    UsageReport,
)
from inferd.chat.request import ChatMessage, ChatRequest, OutputFormat, SamplingOptions, Tool, ToolCall, ToolChoice

__all__ = [
    "ChatEvent",
    "ChatMessage",
    "ChatRequest",
    "ChoiceFinished",
    "FinishReason",
    "OutputFormat",
    "ReasoningDelta",
    "SamplingOptions",
    "TextDelta",
    "TokenScore",
    "Tool",
    "ToolArguments",
    "ToolCall",
    "ToolCallStarted",
    "ToolChoice",
    "UsageReport",
]
