"""The messages of a conversation, from OpenAI's shape into the neutral one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct

from inferd.chat import ChatMessage, ToolCall, custom_arguments
from inferd_runtime.server.dialects.openai.tools import ToolName, functions_by_default
from inferd_runtime.server.dialects.reading import check_all_arguments, read_arguments
from inferd_runtime.server.dialects.refusals import refusal

CallId = Annotated[str, Meta(min_length=1, max_length=256)]
Nothing: TypeAlias = Annotated[list[Any], Meta(max_length=0)] | None
HINTS = {
    "image_url": "images are not supported, only text",
    "input_audio": "audio is not supported, only text",
    "audio_url": "audio is not supported, only text",
    "video_url": "videos are not supported, only text",
    "file": "files are not supported, only text",
    "structural_tag": "structural tags are not supported; tools have them where they need them",
}
"""What is said about values that other servers know."""


class CacheBreakpoint(Struct, frozen=True, forbid_unknown_fields=True):
    """Where a prefix ends that should be cached. All prefixes are, as long as there is room: not for a time (``ttl``)."""

    mode: Literal["explicit"]
    ttl: None = None


class TextPart(Struct, tag="text", tag_field="type", forbid_unknown_fields=True):
    """A part of a text. All prompts are found by their beginning, whatever ``cache_control`` and breakpoints say."""

    text: str
    cache_control: Any = None
    prompt_cache_breakpoint: CacheBreakpoint | None = None


class AnswerPart(TextPart, tag="text", tag_field="type", forbid_unknown_fields=True):
    """A text that the model wrote. OpenAI's agents for JavaScript say in it once more what else its message had."""

    role: Literal["assistant"] | None = None
    refusal: None = None
    annotations: Nothing = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: Any = None
    function_call: Any = None


class RefusalPart(Struct, tag="refusal", tag_field="type", forbid_unknown_fields=True):
    """A part in which the model declined."""

    refusal: str


TextContent: TypeAlias = str | list[TextPart]


class SystemMessage(Struct, tag="system", tag_field="role", forbid_unknown_fields=True):
    """An instruction."""

    content: TextContent
    name: str | None = None


class DeveloperMessage(Struct, tag="developer", tag_field="role", forbid_unknown_fields=True):
    """An instruction, as newer models call it."""

    content: TextContent
    name: str | None = None


class UserMessage(Struct, tag="user", tag_field="role", forbid_unknown_fields=True):
    """What a user says."""

    content: TextContent
    name: str | None = None


class CalledFunction(Struct, forbid_unknown_fields=True):
    """A function that was called; ``arguments`` is the JSON text of an object ("" for none), or what was written of it.

    ``parsed_arguments`` says the same once more: OpenAI's client sends it where it has parsed an answer.
    """

    name: ToolName
    arguments: str
    parsed_arguments: Any = None
    provider_specific_fields: Any = None


class FunctionCall(Struct, tag="function", tag_field="type", forbid_unknown_fields=True):
    """A call that the model made."""

    id: CallId
    function: CalledFunction
    index: int | None = None
    provider_specific_fields: Any = None


class CalledCustom(Struct, forbid_unknown_fields=True):
    """A custom tool that was called, with its text."""

    name: ToolName
    input: str


class CustomCall(Struct, tag="custom", tag_field="type", forbid_unknown_fields=True):
    """A call of a custom tool that the model made."""

    id: CallId
    custom: CalledCustom
    index: int | None = None
    provider_specific_fields: Any = None


class OlderCall(Struct, forbid_unknown_fields=True):
    """A call as ``functions`` had it, before there were tools: one in a message, without an id."""

    name: ToolName
    arguments: str


class ThoughtBlock(Struct, tag="thinking", tag_field="type", forbid_unknown_fields=True):
    """What the model thought, as Anthropic writes it and LiteLLM keeps it."""

    thinking: str
    signature: str | None = None
    cache_control: Any = None


class AssistantMessage(Struct, tag="assistant", tag_field="role", forbid_unknown_fields=True, kw_only=True):
    """What the model said, as it was answered, with what is null or empty in it. ``parsed`` is the content once more.

    ``provider_specific_fields`` is what LiteLLM keeps in messages for itself, ``thinking_blocks`` another shape of ``reasoning``;
    ``prefix`` is Mistral's, whose clients always send it: true would be ``continue_final_message``; ``type`` and ``function`` say
    the last call twice, as OpenAI's agents for JavaScript did up to their version 0.5.
    """

    content: str | list[AnswerPart | RefusalPart] | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    thinking_blocks: list[ThoughtBlock] | None = None
    tool_calls: list[FunctionCall | CustomCall] | None = None
    name: str | None = None
    parsed: Any = None
    prefix: bool | None = None
    type: Literal["function"] | None = None
    function: Any = None
    provider_specific_fields: Any = None
    annotations: Nothing = None
    images: Nothing = None
    audio: None = None
    function_call: OlderCall | None = None


class ToolMessage(Struct, tag="tool", tag_field="role", forbid_unknown_fields=True):
    """What a tool answered."""

    content: TextContent
    tool_call_id: CallId
    name: str | None = None


class FunctionMessage(Struct, tag="function", tag_field="role", forbid_unknown_fields=True):
    """What a function answered, before there were tools: to the last call of it."""

    content: TextContent
    name: ToolName


AnyMessage: TypeAlias = (
    SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage | FunctionMessage
)


def without_nulls(messages: Any) -> Any:
    """Return messages without the fields that are null: some clients send each field that a message of any role may have.

    Calls that do not say what they are are of functions.
    """
    if not isinstance(messages, list):
        return messages
    return [_without_nulls(each) if isinstance(each, dict) else each for each in messages]


def _without_nulls(message: dict[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in message.items() if value is not None}
    return {**given, "tool_calls": functions_by_default(given["tool_calls"])} if "tool_calls" in given else given


def text_of(content: TextContent | list[AnswerPart | RefusalPart]) -> str:
    """Return the text of a content; parts are lines of their own, as vLLM reads them."""
    if isinstance(content, str):
        return content
    return "\n".join(part.text if isinstance(part, TextPart) else part.refusal for part in content)


def read_messages(messages: list[AnyMessage]) -> list[ChatMessage]:
    """Return the messages. Raises InvalidRequest, which names the field, for calls and answers of tools that do not fit."""
    check_all_arguments((call.function.arguments for call in _calls_of(messages)), read=True)
    open_calls: set[str] = set()
    read: list[ChatMessage] = []
    for index, message in enumerate(messages):
        read.append(_read(message, f"messages[{index}]"))
        open_calls |= {call.id for call in read[-1].tool_calls}
        if read[-1].role == "tool":
            if read[-1].tool_call_id not in open_calls:
                field = "name" if isinstance(message, FunctionMessage) else "tool_call_id"
                raise refusal(f"messages[{index}].{field}", "answers no call that was made before and is open")
            open_calls.discard(read[-1].tool_call_id)
    return read


def _calls_of(messages: list[AnyMessage]) -> Iterator[FunctionCall]:
    for message in messages:
        if isinstance(message, AssistantMessage):
            yield from (call for call in message.tool_calls or () if isinstance(call, FunctionCall))


def _older_id(name: str) -> str:
    """Return the id of a call that has none."""
    return f"call_{name}"


def _read(message: AnyMessage, place: str) -> ChatMessage:
    match message:
        case AssistantMessage():
            return _assistant(message, place)
        case ToolMessage():
            return ChatMessage(
                "tool", text_of(message.content), tool_call_id=message.tool_call_id, name=message.name or ""
            )
        case FunctionMessage(content, name):
            return ChatMessage("tool", text_of(content), tool_call_id=_older_id(name), name=name)
        case SystemMessage():
            return ChatMessage("system", text_of(message.content), name=message.name or "")
        case DeveloperMessage():
            return ChatMessage("developer", text_of(message.content), name=message.name or "")
        case UserMessage():
            return ChatMessage("user", text_of(message.content), name=message.name or "")


def _assistant(message: AssistantMessage, place: str) -> ChatMessage:
    if message.prefix:
        raise refusal(f"{place}.prefix", "only false is supported: use continue_final_message", "unsupported_value")
    content = message.refusal if message.content is None else message.content
    calls = [_call(call, f"{place}.tool_calls[{index}]") for index, call in enumerate(message.tool_calls or [])]
    if message.function_call is not None:
        calls.append(_older_call(message.function_call, f"{place}.function_call"))
    reasoning = message.reasoning or message.reasoning_content or _thought(message.thinking_blocks or [])
    if content is None and not calls and not reasoning:
        raise refusal(f"{place}.content", "required where there are no tool_calls", "missing_required_parameter")
    ids: set[str] = set()
    for index, call in enumerate(calls):
        if call.id in ids:
            raise refusal(f"{place}.tool_calls[{index}].id", "another call of this message has this id")
        ids.add(call.id)
    return ChatMessage("assistant", text_of(content or ""), reasoning, calls, name=message.name or "")


def _thought(blocks: list[ThoughtBlock]) -> str:
    return "\n".join(block.thinking for block in blocks)


def _call(call: FunctionCall | CustomCall, place: str) -> ToolCall:
    if isinstance(call, CustomCall):
        return ToolCall(call.id, call.custom.name, custom_arguments(call.custom.input))
    arguments = read_arguments(call.function.arguments, f"{place}.function.arguments")
    return ToolCall(call.id, call.function.name, arguments)


def _older_call(call: OlderCall, place: str) -> ToolCall:
    return ToolCall(_older_id(call.name), call.name, read_arguments(call.arguments, f"{place}.arguments"))
