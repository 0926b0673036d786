"""Answer chat requests with a program: the request, the reply, and what a model's way of calling tools looks like.

    # [tool.inferd]
    # serves = "chat"

    async def main(request: ChatRequest) -> None:
        reply = Reply(request)
        ctx, _ = await open_context(request)
        async with ctx:
            await reply.write(ctx.generate(request.sampler(), max_tokens=request.most_tokens, stop=request.stop))

A client of any dialect of the gateway that names this program as its ``model`` gets what it writes.
"""

from __future__ import annotations

from inferd.chat.answer import answer
from inferd.chat.conversation import open_context, rendered
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
from inferd.chat.reply import Reply
from inferd.chat.request import ChatMessage, ChatRequest, OutputFormat, SamplingOptions, Tool, ToolCall, ToolChoice

__all__ = [
    "ChatEvent",
    "ChatMessage",
    "ChatRequest",
    "ChoiceFinished",
    "FinishReason",
    "OutputFormat",
    "ReasoningDelta",
    "Reply",
    "SamplingOptions",
    "TextDelta",
    "TokenScore",
    "Tool",
    "ToolArguments",
    "ToolCall",
    "ToolCallStarted",
    "ToolChoice",
    "UsageReport",
    "answer",
    "open_context",
    "rendered",
]
