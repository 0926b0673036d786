"""From a request to a context that holds its conversation, rendered by the model's own template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from inferd.calls.generate_arguments import OnLength
from inferd.chat.answer_parser import AnswerShape
from inferd.chat.call_forms import HARMONY, HERMES, JSON
from inferd.chat.request import ChatRequest, Tool, ToolChoice
from inferd.chat.tool_calls import call_or_json, harmony, told_in_text, tool_constraint
from inferd.context import Context
from inferd.generation import Generator
from inferd.model import Model
from inferd.protocol import (
    ChatFormat,
    GetChatFormat,
    InvalidRequest,
    ReasoningSpec,
    RenderChat,
    RenderedChat,
    Tokenize,
    Tokens,
)
from inferd.sampling import Sampler
from inferd.schema import JsonSchema, OutputConstraint
from inferd.transport import Transport, current_transport

DOCUMENTS = "documents"
"""The template argument with texts that an answer is to be found in."""


@dataclass(frozen=True)
class Conversation:
    """A request's conversation as tokens, what answers to it look like, and what they are held to. ``may_think``: they may begin
    with reasoning.
    """

    request: ChatRequest
    tokens: list[int]
    shape: AnswerShape
    constraint: OutputConstraint | None
    text: str = ""
    may_think: bool = False

    def generate(
        self,
        ctx: Context,
        *,
        choice: int = 0,
        logprobs: int | None = None,
        sampler: Sampler | None = None,
        on_length: OnLength | None = None,
    ) -> Generator[Any]:
        """Generate an answer in a context that holds the conversation, as the request asks: sampler, length, ends, constraint,
        speculation, adapter. ``choice``: which of several, each with a seed of its own; ``logprobs``: for the program itself;
        ``sampler``: instead of the request's; ``on_length``: None for what fits the constraint.
        """
        request = self.request
        return ctx.generate(
            request.sampler(choice) if sampler is None else sampler,
            max_tokens=request.most_tokens,
            stop=request.stop,
            stop_token_ids=request.stop_token_ids,
            ignore_eos=request.ignore_eos,
            min_tokens=request.min_tokens,
            constrain=self.constraint,
            system_speculation=request.speculation,
            predict=request.prediction or None,
            logprobs=request.logprobs if logprobs is None else logprobs,
            on_length=on_length or self._on_length,
            adapter=request.adapter or None,
            priority=request.priority,
            reasoning=self._reasoning,
            shown=["*"] if request.special_text else self.shape.shown,
            include_stop=request.include_stop,
            logprob_tokens=request.logprob_tokens,
        )

    @property
    def _on_length(self) -> OnLength:
        """Have an answer that is held to something, and each call in it, end in time, as far as ends are found.

        In texts of grammars they seldom are, and where none is found behind a token it is not written.
        """
        is_grammar = any(tool.input_format for tool in self.request.callable_tools())
        return "cut" if self.constraint is None or is_grammar else "complete_or_cut"

    @property
    def _reasoning(self) -> ReasoningSpec | None:
        if self.shape.reasoning is None or not self.may_think:
            return None
        return ReasoningSpec(*self.shape.reasoning, self.shape.thinking, self.request.reasoning_budget)


async def rendered(
    request: ChatRequest,
    *,
    with_text: bool = False,
    shown: Sequence[Tool] | None = None,
    transport: Transport | None = None,
) -> Conversation:
    """Return the conversation of a request with messages. ``shown``: the tools that the template tells of, where these are not
    those that may be called; ``transport``: instead of the one in force.

    Raises InvalidRequest for a conversation that the model's template refuses.
    """
    transport = transport or current_transport()
    form: ChatFormat = await transport.call(GetChatFormat(request.model))
    if DOCUMENTS in request.template_arguments and not form.documents:
        raise InvalidRequest(
            "documents: this model's chat template reads none: write them into a message", param=DOCUMENTS
        )
    tools = request.callable_tools()
    tool_format = _tool_format(request, form)
    reasoning = (form.reasoning_begin, form.reasoning_end) if form.reasoning_begin else None
    told = request if shown is None else replace(request, tools=list(shown), tool_choice=ToolChoice())
    asked = replace(render_request(told, form), text=with_text or reasoning is not None)
    reply: RenderedChat = await transport.call(asked)
    written = reply.text.rstrip()
    shape = AnswerShape(
        tool_format,
        frozenset(tool.name for tool in tools),
        reasoning,
        thinking=reasoning is not None and not request.continue_final and written.endswith(reasoning[0]),
        parallel=request.tool_choice.parallel,
        required=request.tool_choice.mode == "required",
        held=request.output is not None,
        schemas={tool.name: tool.parameters for tool in tools},
        mark_tokens=(tuple(form.begin_tokens), tuple(form.end_tokens)),
    )
    may_think = reasoning is not None and not request.continue_final and not written.endswith(reasoning[1])
    constraint = answer_constraint(request, tool_format)
    tokens = await _truncated(request, reply.tokens)
    return Conversation(request, tokens, shape, constraint, reply.text if with_text else "", may_think)


def render_request(request: ChatRequest, form: ChatFormat, *, cue: bool = True) -> RenderChat:
    """Return what asks for a request's conversation as tokens, with the assistant's turn opened behind it."""
    tools = request.template_tools()
    messages = [replace(each, role="system") if each.role == "developer" else each for each in request.messages]
    if not form.tools:
        messages, tools = told_in_text(messages, tools), []
    asked = replace(request, messages=messages)
    return RenderChat(
        asked.template_messages(), request.model, tools, request.template_arguments,
        cue=cue and not request.continue_final, continue_final=request.continue_final,
    )  # fmt: skip


def _tool_format(request: ChatRequest, form: ChatFormat) -> str:
    """Return how calls are written: where the answer may also be JSON, they are JSON without marks."""
    if form.tool_format == HARMONY:
        return HARMONY
    if request.output is not None and request.callable_tools() and request.tool_choice.mode != "required":
        return JSON
    return form.tool_format if form.tools else HERMES


def answer_constraint(request: ChatRequest, tool_format: str) -> OutputConstraint | None:
    """Return what an answer is held to; one that has to be a call has no text that a format could hold for.

    Raises InvalidRequest where tool calls and an output format exclude each other.
    """
    tools, output = request.callable_tools(), request.output
    if tool_format == HARMONY:
        return harmony(tools, request.tool_choice, None if output is None else output.constraint())
    if output is None or (tools and request.tool_choice.mode == "required"):
        return tool_constraint(tool_format, tools, request.tool_choice)
    if not tools:
        return output.constraint()
    constraint = output.constraint()
    if not isinstance(constraint, JsonSchema):
        message = "tools and this output format exclude each other: a call is JSON, and so must be the format of other answers"
        raise InvalidRequest(message, param="structured_outputs")
    return call_or_json(tools, constraint)


async def open_context(request: ChatRequest) -> tuple[Context, Conversation]:
    """Return a new context that holds what the request asks about. Raises what the runtime answers."""
    ctx = Context(request.model or None, cache_salt=request.cache_salt)
    if request.prompt is not None:
        ctx.append(await _prompt(request, request.prompt))
        output = request.output
        return ctx, Conversation(request, [], AnswerShape(), None if output is None else output.constraint())
    conversation = await rendered(request)
    ctx.append(conversation.tokens)
    return ctx, conversation


async def _prompt(request: ChatRequest, prompt: str | list[int]) -> list[int]:
    """Return the prompt as tokens. All of a text is the client's own: the names of special tokens in it are these tokens."""
    if not isinstance(prompt, str):
        return await _truncated(request, prompt)
    asked = Tokenize(prompt, request.model, special=True, start=not request.bare_prompt)
    read: Tokens = await current_transport().call(asked)
    return await _truncated(request, read.tokens)


async def _truncated(request: ChatRequest, tokens: list[int]) -> list[int]:
    """Return the last tokens of a prompt, as many as the request says."""
    if request.truncate is None:
        return tokens
    most = request.truncate
    if most < 0:
        model = await Model.load(request.model)
        most = max(1, model.info.max_context - (request.max_tokens or 1))
    return tokens[-most:]
