"""The rounds of a run of tools: what was said, called and answered, and which limits that meets. Pure and synchronous."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from inferd.chat.answer_parser import AnswerPart, ArgumentsPart, CallPart, ReasoningPart, TextPart
from inferd.chat.events import ReasoningDelta, TextDelta, ToolArguments, ToolCallStarted
from inferd.chat.reply import new_call_id
from inferd.chat.request import ChatMessage, ChatRequest, ToolCall, ToolChoice
from inferd.protocol import LimitExceeded
from inferd.tools.events import ToolAnswer, ToolResult


class ToolLoop:
    """Takes what the model says, and the results of its calls. ``request``: the conversation, its tools, and the choice for the
    first round. ``messages`` are the conversation as far as it is whole: a call is in it with its result, or not at all.
    """

    def __init__(self, request: ChatRequest, max_rounds: int, max_calls: int) -> None:
        self.request = request
        self.messages = list(request.messages)
        self.results: list[ToolResult] = []
        self.rounds = 0
        self._max_rounds, self._max_calls = max_rounds, max_calls
        self._begun = 0
        self._round = _Round()

    def begin(self) -> ChatRequest:
        """Begin a round, and return what to ask of the model. Raises LimitExceeded when there may be no other one."""
        if self.rounds == self._max_rounds:
            raise _over(f"the model called tools in all of its {self._max_rounds} rounds", "rounds", self._max_rounds)
        choice = self.request.tool_choice
        if self.rounds and choice.mode == "required":
            choice = ToolChoice(parallel=choice.parallel)
        self.rounds += 1
        self._round = _Round()
        return replace(self.request, messages=list(self.messages), tool_choice=choice)

    def take(self, part: AnswerPart) -> TextDelta | ReasoningDelta | ToolCallStarted | ToolArguments:
        """Take more of what the model says. Raises LimitExceeded for a call too many."""
        now = self._round
        match part:
            case TextPart(text):
                now.text.append(text)
                return TextDelta(text)
            case ReasoningPart(text):
                now.reasoning.append(text)
                return ReasoningDelta(text)
            case CallPart(name):
                if self._begun == self._max_calls:
                    raise _over(f"the model made more than {self._max_calls} calls", "calls", self._max_calls)
                now.calls.append((new_call_id(), name, []))
                self._begun += 1
                return ToolCallStarted(self._begun - 1, now.calls[-1][0], name)
            case ArgumentsPart(text):
                now.calls[-1][2].append(text)
                return ToolArguments(self._begun - 1, text)

    def calls(self) -> list[ToolCall]:
        """Return the calls of the round, at the end of what the model says."""
        return [ToolCall(ident, name, "".join(pieces)) for ident, name, pieces in self._round.calls]

    def answer(self, results: Mapping[str, ToolResult]) -> None:
        """Take the results of all calls of the round, by the calls' ids."""
        now, calls = self._round, self.calls()
        ordered = [results[call.id] for call in calls]
        self.messages.append(ChatMessage("assistant", now.said, now.thought, calls))
        self.messages += [
            ChatMessage("tool", result.text, tool_call_id=result.call.id, name=result.call.name) for result in ordered
        ]
        self.results += ordered
        self._round = _Round()

    def end(self, finish: Literal["stop", "length"]) -> ToolAnswer:
        """Take the end of a round without calls, which is the end of all."""
        now = self._round
        self.leave()
        return ToolAnswer(now.said, now.thought, list(self.results), self.rounds, finish)

    def leave(self) -> None:
        """End where it stands: what the model said counts, calls without results do not. Safe to call twice."""
        if self._round.text:
            self.messages.append(ChatMessage("assistant", self._round.said, self._round.thought))
        self._round = _Round()


class _Round:
    """What the model says at a time. ``calls``: ids, names, and pieces of arguments."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.reasoning: list[str] = []
        self.calls: list[tuple[str, str, list[str]]] = []

    @property
    def said(self) -> str:
        return "".join(self.text)

    @property
    def thought(self) -> str:
        return "".join(self.reasoning)


def _over(message: str, what: str, most: int) -> LimitExceeded:
    return LimitExceeded(message, limit=f"tool_{what}", value=most, raise_with=f"run_tools(max_{what}=...)")
