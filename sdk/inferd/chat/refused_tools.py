"""Which of a request's tools is at fault where the constraint of all of them was refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from inferd.chat.conversation import Conversation, answer_constraint
from inferd.chat.request import Tool
from inferd.grammar import Grammar
from inferd.protocol import ConstraintError


async def naming_its_tool(error: ConstraintError, conversation: Conversation) -> ConstraintError:
    """Return the error of the first tool that is refused by itself, with its name; ``error`` where none is.

    It is found by halves, as each look compiles a constraint.
    """
    tools = conversation.request.callable_tools()
    while len(tools) > 1:
        first = tools[: len(tools) // 2]
        tools = tools[len(first) :] if await _refusal(conversation, first) is None else first
    own = await _refusal(conversation, tools)
    if own is None:
        return error
    return ConstraintError(f"the tool {tools[0].name!r}: {own.message}", **own.detail, param="tools")


async def _refusal(conversation: Conversation, tools: Sequence[Tool]) -> ConstraintError | None:
    """Return what an answer that may call these alone is refused with."""
    request = replace(conversation.request, tools=list(tools), output=None)
    constraint = answer_constraint(request, conversation.shape.tool_format)
    if constraint is not None:
        try:
            await (await Grammar.compile(constraint, request.model or None)).release()
        except ConstraintError as error:
            return error
    return None
