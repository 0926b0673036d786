"""A call that the model may write into its text, whose marks are ordinary tokens."""

from __future__ import annotations

import pytest
from session_runtime import SayingDriver, SessionRuntime

from inferd.chat.conversation import open_context
from inferd.chat.request import ChatMessage, ChatRequest, Tool, ToolChoice
from inferd.transport import transport_in_force

CALL = 'Let me see. <tool_call>\n{"name":"add","arguments":{"a":2,"b":3}}\n</tool_call>'
ADD = Tool("add", "", {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}})


@pytest.mark.parametrize("mode", ["auto", "required"])
async def test_a_search_for_an_end_forbids_no_call(mode: str) -> None:
    said = CALL if mode == "auto" else CALL.partition(" see. ")[2]
    with SessionRuntime(SayingDriver(lambda prompt: said.encode(), room=8192)) as runtime, transport_in_force(runtime):
        request = ChatRequest(
            messages=[ChatMessage("user", "2 + 3?")], tools=[ADD], tool_choice=ToolChoice(mode), max_tokens=200
        )
        ctx, conversation = await open_context(request)
        assert await conversation.generate(ctx).collect_text() == said
        await ctx.release()
