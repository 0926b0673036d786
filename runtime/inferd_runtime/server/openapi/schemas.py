"""JSON Schema of the types of bodies and answers, with what the tables of fields and the readers know beyond the types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from inferd.protocol.chat import MAX_TOOLS
from inferd_runtime.server.dialects.anthropic.blocks import (
    KINDS,
    MEANS_NOTHING as BLOCK_MEANS_NOTHING,
    AnthropicMessage,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from inferd_runtime.server.dialects.anthropic.fields import AnthropicTool, CountTokensBody, MessagesBody
from inferd_runtime.server.dialects.anthropic.request import TOOL_MEANS_NOTHING as ANTHROPIC_TOOL_MEANS_NOTHING
from inferd_runtime.server.dialects.field_table import FieldTable, RequestField
from inferd_runtime.server.dialects.openai.common_fields import MAX_TOKEN
from inferd_runtime.server.dialects.openai.completion_fields import CompletionFields
from inferd_runtime.server.dialects.openai.embeddings import EmbeddingFields
from inferd_runtime.server.dialects.responses.fields import (
    INCLUDED,
    InputTokensBody,
    ReasoningOptions,
    ResponseAllowedTools,
    ResponseCustomTool,
    ResponseNamedChoice,
    ResponsesBody,
    ResponseText,
    ResponseTool,
)
from inferd_runtime.server.dialects.responses.items import (
    MEANS_NOTHING as ITEM_MEANS_NOTHING,
    PART_MEANS_NOTHING,
    CustomCallItem,
    CustomOutputItem,
    FunctionCallItem,
    FunctionOutputItem,
    InputText,
    ItemReference,
    MessageItem,
    OutputRefusal,
    OutputText,
    ReasoningItem,
)
from inferd_runtime.server.dialects.responses.request import (
    CUSTOM_TOOL_MEANS_NOTHING,
    REASONING_MEANS_NOTHING,
    TEXT_MEANS_NOTHING,
    TOOL_MEANS_NOTHING as RESPONSE_TOOL_MEANS_NOTHING,
)

Schema = dict[str, Any]
REFERENCE = "#/components/schemas/{name}"
TEXT: Schema = {"type": "string"}
NULL: Schema = {"type": "null"}
SOME_TEXT: Schema = {"type": "string", "minLength": 1}
SOME_TOKENS: Schema = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": MAX_TOKEN}, "minItems": 1}
PYTHON_END, END = r"\Z", "$"
"""How a regular expression says "the end of the text" in Python, and in JSON Schema."""
BLOCKS = (TextBlock, ThinkingBlock, ToolUseBlock, ToolResultBlock)
ITEMS = (
    MessageItem, ReasoningItem, FunctionCallItem, FunctionOutputItem, CustomCallItem, CustomOutputItem, ItemReference,
)  # fmt: skip
PARTS = (InputText, OutputText, OutputRefusal)


def reference(kind: type) -> Schema:
    """Return a reference to a type's schema."""
    return {"$ref": REFERENCE.format(name=kind.__name__)}


def either(*schemas: Schema) -> Schema:
    """Return the schema of what one of these describes."""
    return schemas[0] if len(schemas) == 1 else {"anyOf": list(schemas)}


def list_of(kinds: Sequence[type], *others: Schema, most: int | None = None) -> Schema:
    """Return the schema of a list of these types with at most so many of them, or of one of ``others``."""
    schema = {"type": "array", "items": either(*map(reference, kinds))}
    return either(*others, schema if most is None else {**schema, "maxItems": most})


PROMPT = either(SOME_TEXT, SOME_TOKENS)
PROMPTS = either(
    PROMPT, {"type": "array", "items": SOME_TEXT, "minItems": 1}, {"type": "array", "items": SOME_TOKENS, "minItems": 1}
)
READ_ONE_BY_ONE: Mapping[type, Mapping[str, Schema]] = {
    CountTokensBody: {
        "messages": {**list_of([AnthropicMessage]), "minItems": 1},
        "system": list_of([TextBlock], TEXT, NULL),
        "tools": list_of([AnthropicTool], NULL, most=MAX_TOOLS),
    },
    MessagesBody: {"top_p": either({"type": "number", "minimum": 0, "maximum": 1}, {"enum": [-1, None]})},
    ToolResultBlock: {"content": list_of([TextBlock], TEXT)},
    InputTokensBody: {
        "input": list_of(ITEMS, TEXT, NULL),
        "tools": list_of([ResponseTool, ResponseCustomTool], NULL, most=MAX_TOOLS),
        "tool_choice": either(
            {"enum": ["auto", "none", "required", None]},
            reference(ResponseNamedChoice),
            reference(ResponseAllowedTools),
        ),
    },
    ResponsesBody: {"include": either({"type": "array", "items": {"enum": list(INCLUDED)}}, NULL)},
    CompletionFields: {"prompt": PROMPTS},
    EmbeddingFields: {"input": PROMPTS},
    MessageItem: {"content": list_of(PARTS, TEXT)},
    FunctionOutputItem: {"output": list_of([InputText], TEXT)},
    CustomOutputItem: {"output": list_of([InputText], TEXT)},
}
"""Fields whose values the dialects read one by one, so that an error names the one at fault: their types say no more than
"anything"."""
SAME_FIELDS: Mapping[type, type] = {MessagesBody: CountTokensBody, ResponsesBody: InputTokensBody}
MEANS_NOTHING: Mapping[type, Mapping[str, Sequence[Any]]] = {
    TextBlock: BLOCK_MEANS_NOTHING["text"],
    ToolUseBlock: BLOCK_MEANS_NOTHING["tool_use"],
    ToolResultBlock: BLOCK_MEANS_NOTHING["tool_result"],
    AnthropicTool: ANTHROPIC_TOOL_MEANS_NOTHING,
    ReasoningItem: ITEM_MEANS_NOTHING["reasoning"],
    FunctionCallItem: ITEM_MEANS_NOTHING["function_call"],
    FunctionOutputItem: ITEM_MEANS_NOTHING["function_call_output"],
    CustomCallItem: ITEM_MEANS_NOTHING["custom_tool_call"],
    CustomOutputItem: ITEM_MEANS_NOTHING["custom_tool_call_output"],
    OutputText: PART_MEANS_NOTHING["output_text"],
    ResponseTool: RESPONSE_TOOL_MEANS_NOTHING,
    ResponseCustomTool: CUSTOM_TOOL_MEANS_NOTHING,
    ResponseText: TEXT_MEANS_NOTHING,
    ReasoningOptions: REASONING_MEANS_NOTHING,
}
"""Fields that are accepted only with values that change nothing."""
PARTS_OF_LISTS = (
    *BLOCKS,
    AnthropicMessage,
    AnthropicTool,
    *ITEMS,
    *PARTS,
    ResponseTool,
    ResponseCustomTool,
    ResponseNamedChoice,
    ResponseAllowedTools,
)
"""Types that only READ_ONE_BY_ONE refers to."""


def component_schemas(kinds: Iterable[Any], tables: Mapping[type, FieldTable]) -> dict[str, Schema]:
    """Return the schemas of these types, and of all that they refer to, by name. ``tables``: the fields of some of them."""
    _, found = msgspec.json.schema_components([*kinds, *PARTS_OF_LISTS], ref_template=REFERENCE)
    for kind, fields in READ_ONE_BY_ONE.items():
        _refine(found, kind, fields)
    for kind, same in SAME_FIELDS.items():
        _refine(found, kind, READ_ONE_BY_ONE[same])
    for kind, accepted in MEANS_NOTHING.items():
        _refine(found, kind, {name: {"enum": list(values)} for name, values in accepted.items()})
    found[AnthropicMessage.__name__] = _message_schema()
    for body in (InputTokensBody, ResponsesBody):
        found[body.__name__]["anyOf"] = [{"required": ["input"]}, {"required": ["previous_response_id"]}]
    for kind in BLOCKS:  # a block says its type; its struct has a default, for the blocks that texts become
        found[kind.__name__]["required"] = [*found[kind.__name__]["required"], "type"]
    for kind, table in tables.items():
        _tell_fields(found[kind.__name__]["properties"], table)
    return {name: _portable(schema) for name, schema in sorted(found.items())}


def _message_schema() -> Schema:
    """Return the schema of Anthropic's messages: which blocks there may be depends on the role."""
    return either(
        *(
            {
                "type": "object",
                "properties": {"role": {"enum": [role]}, "content": list_of([*KINDS[role].values()], TEXT)},
                "required": ["role", "content"],
                "additionalProperties": False,
            }
            for role in ("user", "assistant", "system")
        )
    )


def _refine(found: Mapping[str, Schema], kind: type, fields: Mapping[str, Schema]) -> None:
    """Replace what a type says about these fields."""
    wire_names = {field.name: field.encode_name for field in msgspec.structs.fields(kind)}
    if kind.__name__ in found:
        properties = found[kind.__name__]["properties"]
        for name, schema in fields.items():
            kept = (
                {"default": properties[wire_names[name]]["default"]}
                if "default" in properties[wire_names[name]]
                else {}
            )
            properties[wire_names[name]] = {**schema, **kept}


def _tell_fields(properties: dict[str, Schema], table: FieldTable) -> None:
    """Describe the fields, and add those that do not work with the values that they may have."""
    for field in table.fields:
        if field.only is None:
            properties[field.name] = {**properties[field.name], "description": field.note}
        else:
            properties[field.name] = _idle_field(field)


def _idle_field(field: RequestField) -> Schema:
    standing = "Changes nothing" if field.only else "Refused"
    return {"enum": [*(field.only or ()), None], "description": f"{standing}: {field.note}"}


def _portable(value: Any) -> Any:
    """Return a schema whose regular expressions are JSON Schema's."""
    if isinstance(value, dict):
        return {key: _pattern(one) if key == "pattern" else _portable(one) for key, one in value.items()}
    return [_portable(one) for one in value] if isinstance(value, list) else value


def _pattern(value: Any) -> Any:
    return value.replace(PYTHON_END, END) if isinstance(value, str) else _portable(value)
