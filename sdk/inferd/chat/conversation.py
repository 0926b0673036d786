"""From a request to a context that holds its conversation, rendered by the model's own template."""

from __future__ import annotations

from dataclasses import dataclass, replace

from inferd.chat.answer_parser import HERMES, AnswerShape
from inferd.chat.request import ChatRequest
from inferd.chat.tool_calls import told_in_text, tool_constraint
from inferd.context import Context
from inferd.protocol import ChatFormat, GetChatFormat, InvalidRequest, RenderChat, RenderedChat
from inferd.schema import OutputConstraint
from inferd.transport import current_transport


@dataclass(frozen=True)
class Conversation:
    """A request's conversation as tokens, what answers to it look like, and what they are held to."""

    tokens: list[int]
    shape: AnswerShape
    constraint: OutputConstraint | None
    text: str = ""


async def rendered(request: ChatRequest, *, with_text: bool = False) -> Conversation:
    """Return the conversation of a request with messages. Raises InvalidRequest for one that the model's template refuses."""
    form: ChatFormat = await current_transport().call(GetChatFormat(request.model))
    tools = request.callable_tools()
    tool_format = form.tool_format if form.tools else HERMES
    reasoning = (form.reasoning_begin, form.reasoning_end) if form.reasoning_begin else None
    asked = replace(_render_request(request, form), text=with_text or reasoning is not None)
    reply: RenderedChat = await current_transport().call(asked)
    shape = AnswerShape(
        tool_format,
        frozenset(tool.name for tool in tools),
        reasoning,
        thinking=reasoning is not None and not request.continue_final and reply.text.rstrip().endswith(reasoning[0]),
    )
    return Conversation(reply.tokens, shape, _constraint(request, tool_format), reply.text if with_text else "")


def _render_request(request: ChatRequest, form: ChatFormat) -> RenderChat:
    tools = request.template_tools()
    messages = [replace(each, role="system") if each.role == "developer" else each for each in request.messages]
    if not form.tools:
        messages, tools = told_in_text(messages, tools), []
    asked = replace(request, messages=messages)
    return RenderChat(
        asked.template_messages(), request.model, tools, request.template_arguments,
        cue=not request.continue_final, continue_final=request.continue_final,
    )  # fmt: skip


def _constraint(request: ChatRequest, tool_format: str) -> OutputConstraint | None:
    """Return what an answer is held to. Raises InvalidRequest where tool calls and an output format exclude each other."""
    tools = tool_constraint(tool_format, request.callable_tools(), request.tool_choice)
    if request.output is None:
        return tools
    if tools is not None and request.tool_choice.mode == "required":
        message = "response_format and this tool_choice exclude each other: the answer is a tool call"
        raise InvalidRequest(message, param="response_format")
    return request.output.constraint()


async def open_context(request: ChatRequest) -> tuple[Context, Conversation]:
    """Return a new context that holds what the request asks about. Raises what the runtime answers."""
    ctx = Context(request.model or None, cache_salt=request.cache_salt)
    if request.prompt is not None:
        ctx.append(request.prompt)
        output = request.output
        return ctx, Conversation([], AnswerShape(), None if output is None else output.constraint())
    conversation = await rendered(request)
    ctx.append(conversation.tokens)
    return ctx, conversation
