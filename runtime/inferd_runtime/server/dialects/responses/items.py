"""The items of an input: read, and made whole, so that they can be kept, listed, and sent again by a client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from inferd.protocol import cut
from inferd_runtime.server.dialects.openai.messages import CacheBreakpoint
from inferd_runtime.server.dialects.reading import (
    MAX_SHOWN,
    as_kind,
    check_all_arguments,
    check_means_nothing,
    invalid,
    not_supported,
    read_arguments,
)
from inferd_runtime.server.dialects.responses.ids import new_id

Item: TypeAlias = dict[str, Any]
"""An item as JSON: of type message, reasoning, function_call or function_call_output, custom_tool_call or
custom_tool_call_output, with an id and a status.
"""
ItemId = Annotated[str, Meta(min_length=1, max_length=256)]
FunctionName = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{1,128}\Z")]
Status = Literal["in_progress", "completed", "incomplete"]


class MessageItem(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message of any role, or one that the model wrote."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[Any]
    type: Literal["message"] = "message"
    id: ItemId | None = None
    status: Status | None = None
    phase: Literal["commentary", "final_answer"] | None = None


class ReasoningContent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A piece of what the model thought, or of a summary of it."""

    text: str
    type: Literal["reasoning_text", "summary_text"]


class ReasoningItem(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the model thought."""

    type: Literal["reasoning"]
    id: ItemId | None = None
    summary: list[ReasoningContent] | None = None
    content: list[ReasoningContent] | None = None
    encrypted_content: Any = None
    status: Status | None = None


class ToolCallItem(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A call that the model made."""

    call_id: ItemId
    name: FunctionName
    id: ItemId | None = None
    status: Status | None = None
    caller: Any = None
    namespace: FunctionName | None = None
    async_: Any = msgspec.field(name="async", default=None)


class FunctionCallItem(ToolCallItem, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A call of a function. ``arguments`` is the JSON text of an object ("" for none), or what was written of it.

    ``parsed_arguments`` says the same once more, as ``parsed`` does of a text: OpenAI's client adds it where it parses an answer.
    """

    type: Literal["function_call"]
    arguments: str
    parsed_arguments: Any = None


class CustomCallItem(ToolCallItem, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A call of a custom tool."""

    type: Literal["custom_tool_call"]
    input: str


class ToolOutputItem(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a tool answered."""

    call_id: ItemId
    output: str | list[Any]
    id: ItemId | None = None
    status: Status | None = None
    name: str | None = None
    caller: Any = None
    namespace: FunctionName | None = None


class FunctionOutputItem(ToolOutputItem, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a function answered."""

    type: Literal["function_call_output"]


class CustomOutputItem(ToolOutputItem, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a custom tool answered."""

    type: Literal["custom_tool_call_output"]


class ItemReference(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An item of a response that is kept, by its id."""

    id: ItemId
    type: Literal["item_reference"] | None = None


class InputText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A text that the model reads."""

    text: str
    type: Literal["input_text"]
    prompt_cache_breakpoint: CacheBreakpoint | None = None


class OutputText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A text that the model wrote."""

    text: str
    type: Literal["output_text"]
    annotations: list[Any] | None = None
    logprobs: Any = None
    parsed: Any = None


class OutputRefusal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the model said instead of an answer."""

    refusal: str
    type: Literal["refusal"]


KINDS: Mapping[str, type[Any]] = {
    "message": MessageItem,
    "reasoning": ReasoningItem,
    "function_call": FunctionCallItem,
    "function_call_output": FunctionOutputItem,
    "custom_tool_call": CustomCallItem,
    "custom_tool_call_output": CustomOutputItem,
    "item_reference": ItemReference,
}
INPUT_PARTS: Mapping[str, type[Any]] = {"input_text": InputText}
OUTPUT_PARTS: Mapping[str, type[Any]] = {"output_text": OutputText, "refusal": OutputRefusal, "input_text": InputText}
DUMPED_NAMES = {"async_": "async"}
DIRECT = (None, {"type": "direct"})
MEANS_NOTHING: Mapping[str, Mapping[str, Sequence[Any]]] = {
    "reasoning": {"encrypted_content": (None,)},
    "function_call": {"caller": DIRECT, "async_": (None, False)},
    "function_call_output": {"caller": DIRECT},
    "custom_tool_call": {"caller": DIRECT, "async_": (None, False)},
    "custom_tool_call_output": {"caller": DIRECT},
}
PART_MEANS_NOTHING: Mapping[str, Mapping[str, Sequence[Any]]] = {"output_text": {"annotations": (None, [])}}


def read_input(value: str | Sequence[Any]) -> list[Item | ItemReference]:
    """Return the items of an input; a text is a user's message. Raises InvalidRequest that names the field."""
    if isinstance(value, str):
        return [message_item("user", value)]
    check_all_arguments((one.get("arguments") for one in value if isinstance(one, dict)), read=True)
    return [_read_item(one, f"input[{number}]") for number, one in enumerate(value)]


def message_item(role: str, text: str) -> Item:
    """Return a message that the model reads."""
    return _message(role, [{"type": "input_text", "text": text}], None)


def _read_item(value: Any, at: str) -> Item | ItemReference:
    kind = _kind_of(value, at)
    item = as_kind(as_sent(value), KINDS[kind], at)  # type: Any
    check_means_nothing(item, MEANS_NOTHING.get(kind, {}), f"{at}.")
    match item:
        case MessageItem():
            return _message(item.role, _parts(item, at), item.id, item.status)
        case ReasoningItem():
            return _reasoning(item)
        case FunctionCallItem():
            arguments = read_arguments(item.arguments, f"{at}.arguments")
            own, status = item.id or new_id("fc"), item.status or "completed"
            return call_item(item.call_id, item.name, arguments, own, status, item.namespace)
        case CustomCallItem():
            own, status = item.id or new_id("ctc"), item.status or "completed"
            return custom_call_item(item.call_id, item.name, item.input, own, status, item.namespace)
        case FunctionOutputItem() | CustomOutputItem():
            return _output(item, at)
    reference: ItemReference = item
    return reference


def as_sent(value: Any) -> Any:
    """Return an object with the names of its fields, some of which OpenAI's client has others for: a dump of what it read has
    these.
    """
    if not isinstance(value, dict) or not DUMPED_NAMES.keys() & value.keys():
        return value
    return {DUMPED_NAMES.get(name, name): one for name, one in value.items()}


def _kind_of(value: Any, at: str) -> str:
    """Return an item's type, which messages and references need not say."""
    if not isinstance(value, dict):
        raise invalid(at, f"{at}: an item is an object")
    kind = value.get("type")
    if kind is None:
        return "item_reference" if "id" in value and "role" not in value else "message"
    if not isinstance(kind, str) or kind not in KINDS:
        raise not_supported(f"{at}.type", f"items of type {cut(str(kind), MAX_SHOWN)!r} are")
    return kind


def _parts(item: MessageItem, at: str) -> list[dict[str, Any]]:
    said = item.role == "assistant"
    if isinstance(item.content, str):
        return [_text_part("output_text" if said else "input_text", item.content)]
    kinds = OUTPUT_PARTS if said else INPUT_PARTS
    parts = [_part(value, kinds, f"{at}.content[{number}]") for number, value in enumerate(item.content)]
    return [_text_part("output_text", part["text"]) if said and "text" in part else part for part in parts]


def _part(value: Any, kinds: Mapping[str, type[Any]], at: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not isinstance(kind := value.get("type"), str):
        raise invalid(f"{at}.type", f"{at}.type: a part is an object with a type")
    if kind not in kinds:
        refused = f"parts of type {cut(kind, MAX_SHOWN)!r} are not supported here, only {' and '.join(kinds)}"
        raise invalid(f"{at}.type", f"{at}.type: {refused}")
    part = as_kind(value, kinds[kind], at)  # type: Any
    check_means_nothing(part, PART_MEANS_NOTHING.get(kind, {}), f"{at}.")
    return {"type": kind, "refusal": part.refusal} if isinstance(part, OutputRefusal) else _text_part(kind, part.text)


def _text_part(kind: str, text: str) -> dict[str, Any]:
    return {"type": kind, "text": text, "annotations": []} if kind == "output_text" else {"type": kind, "text": text}


def _message(role: str, parts: Sequence[Mapping[str, Any]], item_id: str | None, status: str | None = None) -> Item:
    return {
        "id": item_id or new_id("msg"), "type": "message", "status": status or "completed", "role": role, "content": list(parts),
    }  # fmt: skip


def _reasoning(item: ReasoningItem) -> Item:
    return {
        "id": item.id or new_id("rs"),
        "type": "reasoning",
        "status": item.status or "completed",
        "summary": [{"type": "summary_text", "text": part.text} for part in item.summary or []],
        "content": [{"type": "reasoning_text", "text": part.text} for part in item.content or []],
    }


def call_item(call_id: str, name: str, arguments: str, item_id: str, status: str, namespace: str | None = None) -> Item:
    """Return a call of a function."""
    item = {
        "id": item_id, "type": "function_call", "status": status, "call_id": call_id, "name": name, "arguments": arguments,
    }  # fmt: skip
    return item if namespace is None else {**item, "namespace": namespace}


def custom_call_item(
    call_id: str, name: str, text: str, item_id: str, status: str, namespace: str | None = None
) -> Item:
    """Return a call of a custom tool."""
    item = {
        "id": item_id, "type": "custom_tool_call", "status": status, "call_id": call_id, "name": name, "input": text,
    }  # fmt: skip
    return item if namespace is None else {**item, "namespace": namespace}


def _output(item: FunctionOutputItem | CustomOutputItem, at: str) -> Item:
    output: Any = item.output
    if not isinstance(output, str):
        output = [_part(value, INPUT_PARTS, f"{at}.output[{number}]") for number, value in enumerate(output)]
    return {
        "id": item.id or new_id("fco" if isinstance(item, FunctionOutputItem) else "ctco"), "type": item.type,
        "status": item.status or "completed",
        "call_id": item.call_id, "output": output,
    }  # fmt: skip
