"""``ToolRun``: what ``Context.run_tools`` returns, a model that calls tools until it has an answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from inferd.adapter import adapter_name
from inferd.calls.context_handle import ContextHandle
from inferd.calls.dialogue import Dialogue
from inferd.calls.generate_arguments import OnLength
from inferd.calls.streamed import Streamed
from inferd.chat.conversation import Conversation, render_request, rendered
from inferd.chat.harmony import parser_of
from inferd.chat.reply import was_cut
from inferd.chat.request import ChatMessage, ChatRequest, Role, Tool, ToolChoice
from inferd.protocol import ChatFormat, GetChatFormat, InferdError, InvalidRequest, Part, RenderedChat
from inferd.tools.calling import ToolCaller
from inferd.tools.events import ToolAnswer, ToolEvent, ToolResult
from inferd.tools.function import ToolFunction, tool
from inferd.tools.loop import ToolLoop
from inferd.tools.options import CheckedToolOptions, ToolOptions as ToolOptions

if TYPE_CHECKING:
    from inferd.context import Context

ToolLike: TypeAlias = ToolFunction | Callable[..., Any]


class ToolRun(Streamed):
    """A model that calls tools, and gets their results, until it answers without a call. Nothing is sent before the first event.

    Use it once: ``async for event in run`` over :data:`~inferd.tools.ToolEvent`, of which the last is the
    :class:`~inferd.tools.ToolAnswer`, or ``await run.collect()``, which returns that.

    It may be left at any point, by ``break``, by an error or by cancellation; ``async with`` ends it at once. However it ends,
    its context then holds the conversation up to there as the model's chat template writes it: every whole round, calls with
    their results, and what was said last. A call without its result is not in it.
    """

    instead = "await its collect(), or iterate it with `async for`"

    def __init__(self, ctx: Context, handle: ContextHandle, tools: Sequence[ToolLike], options: ToolOptions) -> None:
        handle.check()
        self._ctx, self._handle = ctx, handle
        self._options = CheckedToolOptions(**options)
        self._tools = _by_name(tools)
        self._shown = [Tool(each.name, each.description, each.parameters) for each in self._tools.values()]
        self._choice = _choice(self._options, self._tools)
        self._events: AsyncGenerator[ToolEvent, None] | None = None
        self._finish: Literal["stop", "length"] = "stop"

    def __aiter__(self) -> AsyncIterator[ToolEvent]:
        if self._events is not None:
            raise InvalidRequest("a run of tools is used once: call run_tools() again")
        self._events = self._run()
        return self._events

    async def collect(self) -> ToolAnswer:
        """Run to the end, and return the answer.

        Raises LimitExceeded where the model needs more rounds or calls than it may have, and what a tool raises where
        ``on_error`` is "raise".
        """
        async with self:
            async for event in self:
                if isinstance(event, ToolAnswer):
                    return event
        raise AssertionError("a run of tools ends with an answer, or with an error")

    async def aclose(self) -> None:
        """End it now. Safe to call twice."""
        if self._events is not None:
            await self._events.aclose()

    async def __aenter__(self) -> ToolRun:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _run(self) -> AsyncGenerator[ToolEvent, None]:
        await self._handle.prepare()
        loop = ToolLoop(self._request(), self._options.max_rounds, self._options.max_calls)
        try:
            async with aclosing(self._rounds(loop)) as events:
                async for event in events:
                    yield event
            answer = loop.end(self._finish)
        finally:
            loop.leave()
            await self._settled(loop)
        yield answer

    async def _rounds(self, loop: ToolLoop) -> AsyncGenerator[ToolEvent, None]:
        """Let the model speak and its tools run, in turns, up to where it calls none."""
        caller = ToolCaller(self._tools, self._options)
        while True:
            async with aclosing(self._said(loop)) as events:
                async for event in events:
                    yield event
            calls = loop.calls()
            if not calls:
                return
            for call in calls:
                yield call
            results: dict[str, ToolResult] = {}
            async with aclosing(caller.results(calls)) as coming:
                async for result in coming:
                    results[result.call.id] = result
                    yield result
            loop.answer(results)

    async def _said(self, loop: ToolLoop) -> AsyncGenerator[ToolEvent, None]:
        """Let the model speak once."""
        request = loop.begin()
        conversation = await self._begin(request)
        parser = parser_of(conversation.shape)
        # A call that has to come, and for which there is no room, is refused before anything of it is written.
        on_length: OnLength | None = "try_complete" if request.tool_choice.mode == "required" else None
        speaking = conversation.generate(self._ctx, sampler=self._options.sampler, on_length=on_length)
        async with speaking as generator:
            async for step in generator:
                for part in parser.feed(step.text):
                    yield loop.take(part)
                if parser.over:  # behind the only call that there may be
                    break
        is_cut = was_cut(parser, generator)
        self._finish = "length" if is_cut else "stop"
        for part in parser.finish(cut=is_cut):
            yield loop.take(part)

    async def _begin(self, request: ChatRequest) -> Conversation:
        """Make the context hold what the model is asked: what it held before of that stays computed."""
        shown = None if request.tool_choice.mode == "none" else self._shown
        conversation = await rendered(request, shown=shown, transport=self._handle.transport)
        await self._handle.rewrite(conversation.tokens, open_turn=False)
        return conversation

    async def _settled(self, loop: ToolLoop) -> None:
        """Settle to the end, also where that is cancelled."""
        settling = asyncio.ensure_future(self._settle(loop))
        try:
            await asyncio.shield(settling)
        except asyncio.CancelledError:
            await asyncio.wait([settling])
            raise

    async def _settle(self, loop: ToolLoop) -> None:
        """Leave the context with what was said, in whole turns, so that its caller can go on with it."""
        try:
            # A context that was released, or a runtime that is gone, is told by whatever ended the run.
            with suppress(InferdError):
                transport, asked = self._handle.transport, replace(loop.request, messages=loop.messages)
                choice = ToolChoice("none" if asked.tool_choice.mode == "none" else "auto")
                form: ChatFormat = await transport.call(GetChatFormat(asked.model))
                reply: RenderedChat = await transport.call(
                    render_request(replace(asked, tool_choice=choice), form, cue=False)
                )
                await self._handle.rewrite(reply.tokens, open_turn=loop.messages[-1].role != "assistant")
        finally:
            self._handle.dialogue = Dialogue(loop.messages)

    def _request(self) -> ChatRequest:
        """Return the conversation that the context holds. Raises InvalidRequest where that is not known."""
        if not self._handle.dialogue.known:
            raise InvalidRequest(
                "run_tools: this context holds more than messages (raw text, tokens, a saved context, or a part of one), and a "
                "chat template tells of tools at the start; use one that was filled with system, user, assistant and generate"
            )
        options = self._options
        return ChatRequest(
            self._handle.model, [_message(said) for said in self._handle.dialogue.messages],
            tools=self._shown, tool_choice=self._choice, max_tokens=options.max_tokens,
            speculation=options.system_speculation, adapter=adapter_name(options.adapter),
            template_arguments=dict(options.template_arguments), reasoning_budget=options.reasoning_budget,
        )  # fmt: skip


def _message(said: Part | ChatMessage) -> ChatMessage:
    return said if isinstance(said, ChatMessage) else ChatMessage(cast("Role", said.role), said.text)


def _by_name(tools: Sequence[ToolLike]) -> dict[str, ToolFunction]:
    if isinstance(tools, (str, ToolFunction)) or not isinstance(tools, Sequence):
        raise InvalidRequest(f"tools must be a list of functions and tools, not {tools!r:.80}")
    named: dict[str, ToolFunction] = {}
    for given in tools:
        each = given if isinstance(given, ToolFunction) else tool(given)
        if each.name in named:
            raise InvalidRequest(f"two tools are called {each.name!r}: give one another name, tool(function, name=...)")
        named[each.name] = each
    return named


def _choice(options: CheckedToolOptions, tools: Mapping[str, ToolFunction]) -> ToolChoice:
    chosen, parallel = options.tool_choice, options.parallel
    if chosen in ("auto", "none"):
        return ToolChoice("auto" if chosen == "auto" else "none", parallel=parallel)
    names = list(tools) if chosen == "required" else [name for name in tools if name == chosen]
    if not names:
        raise InvalidRequest(f"tool_choice={chosen!r}: there is no such tool; there are {', '.join(tools) or 'none'}")
    return ToolChoice("required", [] if chosen == "required" else names, parallel)
