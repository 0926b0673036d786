"""``chat.*``: whole conversations through a model's chat template, and what the template knows of tools and reasoning."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from inferd.protocol.carrying import shown
from inferd.protocol.errors import InvalidRequest, LimitExceeded
from inferd.protocol.operations import operation

MAX_MESSAGES = 4096
MAX_TOOLS = 512
"""Of one conversation; and calls of one message."""
MAX_CHAT_DEPTH = 64
"""Levels of lists and objects in tools, in a call's arguments, and in template arguments."""
MAX_CHAT_VALUES = 32_768
"""Values in a request, the keys of objects included."""
CHAT_ROLES = ("system", "developer", "user", "assistant", "tool")
TEXT_FIELDS = ("content", "name", "tool_call_id", "reasoning_content")
MESSAGE_FIELDS = frozenset({"role", "tool_calls", *TEXT_FIELDS})
RESERVED_ARGUMENTS = frozenset(
    {"messages", "tools", "add_generation_prompt", "continue_final_message", "chat_template", "tokenize"}
)
"""Names that a template argument may not have, beside those that end in ``_token``: they are set by the runtime."""


@dataclass(frozen=True)
class RenderedChat:
    """A conversation as the model reads it. ``text``: what the template wrote, if it was asked for."""

    tokens: list[int]
    text: str = ""


@operation("chat.render", RenderedChat)
@dataclass(frozen=True)
class RenderChat:
    """Render a conversation with the model's chat template, as a context's first tokens.

    ``messages`` have the fields that templates of Hugging Face read: role, content (text), name, reasoning_content, tool_calls
    (id, type, function: name and arguments as an object, or as a text that is none, which is written as it is), tool_call_id.
    ``tools`` are in OpenAI's form. ``template_arguments``: further variables of the template. ``cue``: open the assistant's turn
    behind them. ``continue_final``: leave the last message open, so that its text is continued; not with ``cue``.
    ``text``: answer with the rendered text, too.

    The names of special tokens in any of these are read as text: only the template itself writes special tokens.
    """

    messages: list[dict[str, Any]]
    model: str = ""
    tools: list[dict[str, Any]] = field(default_factory=list)
    template_arguments: dict[str, Any] = field(default_factory=dict)
    cue: bool = True
    continue_final: bool = False
    text: bool = False


@dataclass(frozen=True)
class ChatFormat:
    """What a model's chat template knows. ``template``: whether there is one; ``tools``: whether it renders tools.

    ``tool_format``: how the model writes a call of a tool (:mod:`inferd.chat.call_forms`), "unknown" for a way that is not there.
    ``reasoning_begin`` and ``reasoning_end``: the marks around its reasoning, "" where the template names none; ``begin_tokens``
    and ``end_tokens``: as tokens. ``documents``: whether it reads the variable of this name.
    """

    tools: bool
    tool_format: str
    reasoning_begin: str
    reasoning_end: str
    template: bool
    begin_tokens: list[int] = field(default_factory=list)
    end_tokens: list[int] = field(default_factory=list)
    documents: bool = False


@operation("chat.format", ChatFormat)
@dataclass(frozen=True)
class GetChatFormat:
    """Ask what a model's chat template knows ("" is the default model)."""

    model: str = ""


def check_render_chat(request: RenderChat) -> None:
    """Raises InvalidRequest or LimitExceeded, which name the field, for a conversation that no template could render."""
    if not request.messages:
        raise InvalidRequest("messages must hold at least one message")
    _check_count("messages", "chat_messages", len(request.messages), MAX_MESSAGES)
    _check_count("tools", "chat_tools", len(request.tools), MAX_TOOLS)
    _check_values(request)
    for at, message in enumerate(request.messages):
        _check_message(f"messages[{at}]", message)
    for at, tool in enumerate(request.tools):
        _check_object(f"tools[{at}]", tool)
    _check_arguments(request.template_arguments)
    if request.continue_final:
        _check_continued(request)


def chat_texts(request: RenderChat) -> Iterator[str]:
    """Yield every text of a checked request, the keys of objects included."""
    values: list[Any] = [request.messages, request.tools, request.template_arguments]
    while values:
        value = values.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, Mapping):
            yield from value
            values.extend(value.values())
        elif isinstance(value, list):
            values.extend(value)


def _check_message(name: str, message: Any) -> None:
    if not isinstance(message, dict):
        raise InvalidRequest(f"{name} must be an object, not {shown(message)}")
    for key in message:
        if key not in MESSAGE_FIELDS:
            raise InvalidRequest(f"{name} has no field {shown(key)}")
    role = message.get("role")
    if role not in CHAT_ROLES:
        raise InvalidRequest(f"{name}.role must be one of {', '.join(CHAT_ROLES)}, not {shown(role)}")
    for key in TEXT_FIELDS:
        _check_text(f"{name}.{key}", message.get(key), missing=key != "content" or bool(message.get("tool_calls")))
    if message.get("tool_calls") is not None:
        _check_calls(f"{name}.tool_calls", message["tool_calls"], role)


def _check_text(name: str, text: Any, *, missing: bool) -> None:
    if not isinstance(text, str) and not (missing and text is None):
        raise InvalidRequest(f"{name} must be a text, not {shown(text)}")


def _check_calls(name: str, calls: Any, role: str) -> None:
    if not isinstance(calls, list):
        raise InvalidRequest(f"{name} must be a list, not {shown(calls)}")
    if role != "assistant" and calls:
        raise InvalidRequest(f"{name}: only a message of the assistant calls tools")
    _check_count(name, "tool_calls", len(calls), MAX_TOOLS)
    for at, call in enumerate(calls):
        _check_call(f"{name}[{at}]", call)


def _check_call(name: str, call: Any) -> None:
    if not isinstance(call, dict) or not call.keys() <= {"id", "type", "function"}:
        raise InvalidRequest(f"{name} must be an object with id, type and function, not {shown(call)}")
    _check_text(f"{name}.id", call.get("id"), missing=True)
    if call.get("type", "function") != "function":
        raise InvalidRequest(f"{name}.type must be 'function', not {shown(call['type'])}")
    function = call.get("function")
    if not isinstance(function, dict) or not function.keys() <= {"name", "arguments"}:
        raise InvalidRequest(f"{name}.function must be an object with name and arguments, not {shown(function)}")
    _check_text(f"{name}.function.name", function.get("name"), missing=False)
    if not isinstance(function.get("arguments"), str):
        _check_object(f"{name}.function.arguments", function.get("arguments"))


def _check_arguments(arguments: Mapping[str, Any]) -> None:
    for key, value in arguments.items():
        if not key.isidentifier() or key in RESERVED_ARGUMENTS or key.startswith("_") or key.endswith("_token"):
            raise InvalidRequest(f"template_arguments: {shown(key)} is not a name that can be given to a template")
        _check_depth(f"template_arguments.{key}", value)


def _check_continued(request: RenderChat) -> None:
    if request.cue:
        raise InvalidRequest("continue_final and cue exclude each other: one leaves a turn open, the other opens one")
    if not isinstance(request.messages[-1].get("content"), str):
        raise InvalidRequest(f"continue_final: messages[{len(request.messages) - 1}].content is no text to continue")


def _check_object(name: str, value: Any) -> None:
    if not isinstance(value, dict):
        raise InvalidRequest(f"{name} must be an object, not {shown(value)}")
    _check_depth(name, value)


def _check_depth(name: str, value: Any) -> None:
    """Raises InvalidRequest for keys that are no texts, LimitExceeded for too many levels."""
    level: Sequence[Any] = [value]
    for _ in range(MAX_CHAT_DEPTH + 1):
        level = [item for each in level for item in _items(name, each)]
        if not level:
            return
    raise LimitExceeded(
        f"{name} is nested too deeply: {MAX_CHAT_DEPTH} levels are allowed",
        limit="chat_depth", value=MAX_CHAT_DEPTH, raise_with="a flatter value",
    )  # fmt: skip


def _items(name: str, value: Any) -> Collection[Any]:
    """Return what a list or object holds, nothing for another value."""
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise InvalidRequest(f"{name} has a key that is no text")
        return value.values()
    return value if isinstance(value, list) else ()


def _check_values(request: RenderChat) -> None:
    level: Sequence[Any] = [request.messages, request.tools, request.template_arguments]
    count = 0
    while level:
        level = [each for each in level if isinstance(each, (dict, list))]
        count += sum(map(len, level))
        _check_count("values in messages and tools", "chat_values", count, MAX_CHAT_VALUES)  # before each is looked at
        level = [item for each in level for item in (each.values() if isinstance(each, dict) else each)]


def _check_count(name: str, limit: str, count: int, most: int) -> None:
    if count > most:
        raise LimitExceeded(
            f"{name}: {count} of them; {most} are allowed", limit=limit, value=most, raise_with="fewer of them"
        )
