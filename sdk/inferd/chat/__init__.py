"""Answer chat requests with a program: the request, the reply, and what a model's way of calling tools looks like.

    # [tool.inferd]
    # serves = "chat"

    async def main(request: ChatRequest) -> None:
        ctx, conversation = await open_context(request)
        reply = Reply(request, conversation.shape)
        async with ctx:
            await reply.write(conversation.generate(ctx))

A client of any dialect of the gateway that names this program as its ``model`` gets what it writes.
"""

from __future__ import annotations

from inferd.chat.answer import answer
from inferd.chat.conversation import Conversation, open_context, rendered
from inferd.chat.events import (
    ChatEvent,
    ChoiceFinished,
    FinishReason,
    PromptScores,
    ReasoningDelta,
    TextDelta,
    TokenScore,
    ToolArguments,
    ToolCallStarted,
    UsageReport,
)
from inferd.chat.reply import Reply
from inferd.chat.request import (
    ChatMessage,
    ChatRequest,
    CustomInput,
    OutputFormat,
    SamplingOptions,
    Tool,
    ToolCall,
    ToolChoice,
    custom_arguments,
    custom_tool,
)

__all__ = [
    "ChatEvent", "ChatMessage", "ChatRequest", "ChoiceFinished", "Conversation", "CustomInput", "FinishReason",
    "OutputFormat", "PromptScores", "ReasoningDelta", "Reply", "SamplingOptions", "TextDelta", "TokenScore", "Tool",
    "ToolArguments", "ToolCall", "ToolCallStarted", "ToolChoice", "UsageReport", "answer", "custom_arguments", "custom_tool",
    "open_context", "rendered",
]  # fmt: skip
