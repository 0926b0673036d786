"""Tools in the model's own format: told to it, its calls held to their schemas and found in its answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from inferd.chat.answer_parser import AnswerPart, ArgumentsPart, CallPart
from inferd.chat.request import ChatMessage, ChatRequest, Tool, ToolChoice
from inferd.chat.tool_calls import told_in_text, tool_constraint
from inferd.protocol import InvalidRequest
from inferlet import turns
from inferlet.grammar import Grammar, Matcher
from inferlet.model import Model, optional_model
from inferlet.token_text import TokenText, answer_shape, chat_format

ToolSchema: TypeAlias = str | dict[str, Any]


@optional_model
def equip_prefix(model: Model, tools: Sequence[ToolSchema]) -> list[int]:
    """Return the tokens that tell the model of tools; they begin a conversation, in front of the user's message.

    A tool is ``{"name", "description", "parameters"}``, also as ``{"type": "function", "function": ...}``, or its JSON text.
    """
    described = [_template_tool(tool) for tool in _read(tools)]
    if not chat_format(model).tools:
        (told,) = told_in_text([], described)
        return turns.opening(model, [turns.turn("system", told.content)])
    whole = turns.opening(model, [turns.QUESTION], tools=described)
    question = turns.continuation(model, [turns.QUESTION])
    if whole[-len(question) :] != question:
        raise InvalidRequest("this model's chat template writes tools into messages: they have no tokens of their own")
    return whole[: -len(question)]


@optional_model
def answer_prefix(model: Model, name: str, value: Any) -> list[int]:
    """Return the tokens of a tool's result. ``value`` is text, or becomes JSON."""
    text = value if isinstance(value, str) else json.dumps(value)
    message = ChatMessage("tool", text, name=name)
    if not chat_format(model).tools:
        (message,) = told_in_text([message], [])
    (rendered,) = ChatRequest(messages=[message]).template_messages()
    return turns.continuation(model, [rendered])


@optional_model
def native_matcher(model: Model, tools: Sequence[ToolSchema]) -> Matcher | None:
    """Return a matcher that keeps a text to calls of the tools; None where the model's format is not known, or tools are none."""
    form = chat_format(model)
    try:
        read = _read(tools)
        constraint = tool_constraint(form.tool_format if form.tools else "hermes", read, ToolChoice("required"))
        return None if constraint is None else Matcher(Grammar(constraint), model.tokenizer())
    except Exception:  # noqa: BLE001 - None is how Pie says that there is none, whatever the reason
        return None


class Event:
    """What a batch of tokens brought; one of these for each ``feed``."""

    @dataclass(frozen=True)
    class Start:
        """No call is complete."""

    @dataclass(frozen=True)
    class Call:
        """A complete call. ``args`` is JSON text."""

        name: str
        args: str


AnyEvent: TypeAlias = Event.Start | Event.Call


class Decoder:
    """Tokens to calls. Several calls of one batch come one by one, with the next ``feed``."""

    def __init__(self, model: Model | None = None) -> None:
        model = model or Model.load()
        self._tokens = TokenText(model, answer_shape(model, tools=True))
        self._clear()

    def feed(self, tokens: list[int]) -> AnyEvent:
        """Read a batch of tokens."""
        heard = self._tokens.feed(tokens)
        for part in heard.parts:
            self._read(part)
        if self._name and _is_whole(self._args):
            self._end_call()
        return self._calls.pop(0) if self._calls else Event.Start()

    def reset(self) -> None:
        """Begin anew."""
        self._tokens.reset()
        self._clear()

    def _clear(self) -> None:
        self._calls: list[Event.Call] = []
        self._name, self._args = "", ""

    def _read(self, part: AnswerPart) -> None:
        if isinstance(part, CallPart):
            if self._name:
                self._end_call()
            self._name = part.name
        elif isinstance(part, ArgumentsPart):
            self._args += part.text

    def _end_call(self) -> None:
        self._calls.append(Event.Call(self._name, self._args or "{}"))
        self._name, self._args = "", ""


def _is_whole(text: str) -> bool:
    if not text.endswith("}"):
        return False
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _read(tools: Sequence[ToolSchema]) -> list[Tool]:
    read: list[Tool] = []
    for tool in tools:
        value = json.loads(tool) if isinstance(tool, str) else tool
        value = value.get("function", value)
        parameters = value.get("parameters", value.get("inputSchema", value.get("input_schema", {"type": "object"})))
        read.append(Tool(value["name"], value.get("description", ""), parameters))
    return read


def _template_tool(tool: Tool) -> dict[str, Any]:
    described = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": described}
