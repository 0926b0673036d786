"""How a model calls tools: what tells it of them, and the constraints that keep its calls to the tools' schemas."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from inferd.chat.argument_constraints import DefinitionRoom, json_arguments, python_call, xml_call
from inferd.chat.call_forms import (
    CALL_BEGIN,
    CALL_END,
    HARMONY,
    HEADED,
    LFM2,
    LISTED,
    LLAMA3,
    MARKED,
    PHI4,
    UNKNOWN,
    XML,
    CallForm,
    HeadedCall,
)
from inferd.chat.composed import AnyOf, InSequence, Prefixed, Repeated, Text
from inferd.chat.harmony import harmony_constraint
from inferd.chat.request import ChatMessage, Tool, ToolChoice
from inferd.constraints import Tag, Tagged
from inferd.program.json_types import closed
from inferd.program.tagged_unions import with_tags
from inferd.protocol import InvalidRequest
from inferd.schema import JsonSchema, OutputConstraint

ARGUMENTS_KEY = {LLAMA3: "parameters"}
"""By format the key of a call's arguments, where it is not ``arguments``."""
COMPOSING = frozenset({"allOf", "if", "dependentSchemas", "unevaluatedProperties"})
INTRODUCTION = (
    "You may call functions. The functions, as JSON Schema:\n{tools}\n\n"
    'To call one, write {begin}\n{{"name": NAME, "arguments": ARGUMENTS}}\n{end}, one such block for each call.'
)


def tool_constraint(tool_format: str, tools: Sequence[Tool], choice: ToolChoice) -> OutputConstraint | None:
    """Return what keeps the calls of an answer to ``tools``, those that the choice leaves; None where none may be called.

    With the choice ``required`` the answer is calls and nothing else; with ``auto`` a call is held to its tool from its
    opening on. Raises InvalidRequest for parameters that are no schema, or that the format cannot be held to, and for a format
    that is not known.
    """
    if not tools:
        return None
    if tool_format == UNKNOWN:
        message = "tools: this model's chat template writes calls in a format that is not known; --tool-format sets one"
        raise InvalidRequest(message, param="tools")
    if tool_format == HARMONY:
        return harmony(tools, choice, None)
    form = MARKED.get(tool_format)
    if form is not None:
        return _marked(form, _written_call(tool_format, tools, strict=choice.mode != "auto"), choice)
    if choice.mode == "auto":
        return _unmarked(tool_format, tools)
    key = ARGUMENTS_KEY.get(tool_format, "arguments")
    if any(tool.input_format for tool in tools):
        return _composed_calls(tools, key, None if tool_format not in LISTED else choice.parallel)
    calls = JsonSchema(_any_call(tools, key))
    if tool_format not in LISTED:
        return calls
    most = {} if choice.parallel else {"maxItems": 1}
    return JsonSchema(_array_of(calls, most))


def harmony(tools: Sequence[Tool], choice: ToolChoice, output: OutputConstraint | None) -> OutputConstraint | None:
    """Return what an answer of gpt-oss is held to behind its reasoning; ``output``: the format of a text."""
    return harmony_constraint([(tool, _arguments(tool)) for tool in tools], choice, output)


def call_or_json(tools: Sequence[Tool], answer: JsonSchema[Any]) -> OutputConstraint:
    """Return what keeps an answer to a call of a tool, or to JSON of another schema."""
    if any(tool.input_format for tool in tools):
        return AnyOf([_one_call(tools, "arguments"), answer])
    schema = _any_call(tools, "arguments")
    schema["$defs"]["answer"] = _moved(json.loads(answer.constraint.value), "#/$defs/answer")
    schema["anyOf"].append({"$ref": "#/$defs/answer"})
    return JsonSchema(schema)


def _marked(form: CallForm, call: OutputConstraint, choice: ToolChoice) -> OutputConstraint:
    """Return calls between marks: somewhere in a text, or nothing else. The only call that there may be is over before its end
    mark.
    """
    if form.between is not None:
        return _section(form, call, form.between, choice)
    line = "\n" if form.end else ""
    begin, end = Text(f"{form.begin}{line}"), f"{line}{form.end}"
    if choice.mode == "auto":
        return Tagged([Tag(form.begin, InSequence([Text(line), call]) if line else call, end)])
    if not choice.parallel:
        return InSequence([begin, call])
    one = InSequence([begin, call, Text(end)])
    return InSequence([one, Repeated(InSequence([Text(line), one]) if line else one)])


def _section(form: CallForm, call: OutputConstraint, between: str, choice: ToolChoice) -> OutputConstraint:
    """Return calls that stand between two marks together."""
    before, behind = form.around
    if choice.mode != "auto" and not choice.parallel:
        return InSequence([Text(f"{form.begin}{before}"), call])
    calls = InSequence([call, Repeated(InSequence([Text(between), call]) if between else call)])
    if choice.mode == "auto":
        return Tagged([Tag(form.begin, InSequence([Text(before), calls]) if before else calls, f"{behind}{form.end}")])
    return InSequence([Text(f"{form.begin}{before}"), calls, Text(f"{behind}{form.end}")])


def _written_call(tool_format: str, tools: Sequence[Tool], *, strict: bool) -> OutputConstraint:
    """Return a call of any of the tools, as it stands between marks."""
    room = DefinitionRoom()
    if tool_format in XML:
        form = XML[tool_format]
        return AnyOf([xml_call(form, tool, checked_parameters(tool), room, strict=strict) for tool in tools])
    if tool_format == LFM2:
        return AnyOf([python_call(tool, checked_parameters(tool), room, strict=strict) for tool in tools])
    if tool_format in HEADED:
        return AnyOf([_headed(HEADED[tool_format], tool) for tool in tools])
    return _one_call(tools, "arguments")


def _headed(written: HeadedCall, tool: Tool) -> OutputConstraint:
    """Return a call that is a name and its arguments."""
    head = Text(f"{written.before}{tool.name}{written.behind}")
    members = [head, _arguments(tool)]
    return InSequence([*members, Text(written.end)] if written.end else members)


def _unmarked(tool_format: str, tools: Sequence[Tool]) -> Tagged:
    key = ARGUMENTS_KEY.get(tool_format, "arguments")
    spaces = (" ", "")  # as models write a call, and as JSON is written elsewhere here
    tags = [_opened(tool, key, _arguments(tool), space) for tool in tools for space in spaces]
    if tool_format not in LISTED or tool_format == PHI4:  # whose mark is a word that texts may have
        return Tagged(tags)
    call = _one_call(tools, key)
    listed = [Repeated(Text(" "), 0, 1), Text("["), call, Repeated(InSequence([Text(","), call])), Text("]")]
    return Tagged([Tag(LISTED[tool_format].within, InSequence(listed), ""), *tags])


def _opened(tool: Tool, key: str, parameters: OutputConstraint, space: str) -> Tag:
    return Tag(f'{{"name":{space}{json.dumps(tool.name)}', Prefixed(f',{space}"{key}":{space}', parameters), "}")


def _one_call(tools: Sequence[Tool], key: str) -> OutputConstraint:
    """Return a call of any of the tools. Their schemas stand alone, as arrays of unique items need it: see docs/grammar.md."""
    heads = [f'{{"name":{json.dumps(tool.name)},"{key}":' for tool in tools]
    arguments = [_arguments(tool) for tool in tools]
    return AnyOf([InSequence([Text(head), one, Text("}")]) for head, one in zip(heads, arguments, strict=True)])


def _composed_calls(tools: Sequence[Tool], key: str, parallel: bool | None) -> OutputConstraint:
    """Return a call, or (``parallel`` says if of several) a list of calls, where no one schema says what they are."""
    call = _one_call(tools, key)
    if parallel is None:
        return call
    more = [Repeated(InSequence([Text(","), call]))] if parallel else []
    return InSequence([Text("["), call, *more, Text("]")])


def _arguments(tool: Tool) -> OutputConstraint:
    return json_arguments(tool, checked_parameters(tool))


def _any_call(tools: Sequence[Tool], key: str) -> dict[str, Any]:
    """Return the schema of a call of any of the tools. Their own schemas become definitions, so that references still hold."""
    names = [f"tool{index}" for index in range(len(tools))]
    calls = [_call(tool, key, f"#/$defs/{name}") for tool, name in zip(tools, names, strict=True)]
    definitions = {
        name: _moved(checked_parameters(tool), f"#/$defs/{name}") for tool, name in zip(tools, names, strict=True)
    }
    return {"anyOf": calls, "$defs": definitions}


def _array_of(calls: JsonSchema[Any], bounds: dict[str, int]) -> dict[str, Any]:
    schema = json.loads(calls.constraint.value)
    return {"type": "array", "items": {"anyOf": schema["anyOf"]}, "minItems": 1, **bounds, "$defs": schema["$defs"]}


def _call(tool: Tool, key: str, reference: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"name": {"const": tool.name}, key: {"$ref": reference}},
        "required": ["name", key],
        "additionalProperties": False,
    }


def checked_parameters(tool: Tool) -> dict[str, Any]:
    """Return the schema of a tool's arguments, which are an object. Keys that it does not name are left out where it says nothing
    about them: few functions take them. Raises InvalidRequest that names the tool.
    """
    kind = tool.parameters.get("type", "object")
    if kind != "object":
        raise InvalidRequest(
            f"the parameters of the tool {tool.name!r} must be an object's schema, not of type {json.dumps(kind)}"
        )
    schema = with_tags({"type": "object", **tool.parameters})
    return schema if _composes(schema) else closed(schema)


def _composes(schema: Any) -> bool:
    """Return True if an object's keys may be named in several places of the schema: then none of these may be closed."""
    if isinstance(schema, list):
        return any(map(_composes, schema))
    return isinstance(schema, dict) and (not COMPOSING.isdisjoint(schema) or any(map(_composes, schema.values())))


def _moved(schema: Any, root: str) -> Any:
    """Return a schema whose references into itself hold when it stands at ``root`` of another one, where it has no address."""
    own = schema.get("$id", "") if isinstance(schema, dict) else ""
    if not isinstance(own, str) or own.startswith("#"):
        own = ""
    inside = {key: schema[key] for key in schema if key != "$id"} if own else schema
    names = dict(_names(inside, ""))
    return _referring(inside, root, lambda reference: _place(reference.removeprefix(own.rstrip("#")), names))


def _referring(schema: Any, root: str, place_of: Callable[[str], str | None]) -> Any:
    if isinstance(schema, list):
        return [_referring(part, root, place_of) for part in schema]
    if not isinstance(schema, dict) or _has_address(schema):
        return schema
    moved = {key: _referring(value, root, place_of) for key, value in schema.items()}
    place = place_of(schema["$ref"]) if isinstance(schema.get("$ref"), str) else None
    return moved if place is None else {**moved, "$ref": root + place}


def _place(reference: str, names: Mapping[str, str]) -> str | None:
    """Return the pointer that a reference means in its document; None for another document."""
    if reference in names:
        return names[reference]
    if reference in ("", "#") or reference.startswith("#/"):
        return reference[1:]
    return reference if reference.startswith(("/$defs/", "/definitions/")) else None  # as LiteLLM writes them


def _names(schema: Any, pointer: str) -> Iterator[tuple[str, str]]:
    """Yield references by name with the pointers of what they name: two tools may use one name."""
    if isinstance(schema, list):
        for index, part in enumerate(schema):
            yield from _names(part, f"{pointer}/{index}")
    if not isinstance(schema, dict) or _has_address(schema):
        return
    if isinstance(schema.get("$anchor"), str):
        yield f"#{schema['$anchor']}", pointer
    if isinstance(schema.get("$id"), str):  # so anchors were written in draft 7
        yield schema["$id"], pointer
    for key, part in schema.items():
        yield from _names(part, f"{pointer}/{quote(key.replace('~', '~0').replace('/', '~1'))}")


def _has_address(schema: Mapping[str, Any]) -> bool:
    """Return True for a document of its own, whose references are its own."""
    address = schema.get("$id")
    return isinstance(address, str) and not address.startswith("#")


def told_in_text(messages: Sequence[ChatMessage], tools: Sequence[dict[str, Any]]) -> list[ChatMessage]:
    """Return messages for a template that knows no tools: what they are, calls and their results, all in plain text."""
    told = [_in_text(message) for message in messages]
    if not tools:
        return told
    lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    text = INTRODUCTION.format(tools=lines, begin=CALL_BEGIN, end=CALL_END)
    if told and told[0].role == "system":
        return [ChatMessage("system", f"{told[0].content}\n\n{text}"), *told[1:]]
    return [ChatMessage("system", text), *told]


def _in_text(message: ChatMessage) -> ChatMessage:
    if message.role == "tool":
        return ChatMessage("user", f"<tool_response>\n{message.content}\n</tool_response>")
    if not message.tool_calls:
        return message
    calls = [_call_text(call.name, call.arguments) for call in message.tool_calls]
    return ChatMessage(message.role, "\n".join([message.content, *calls] if message.content else calls))


def _call_text(name: str, arguments: str) -> str:
    return f'{CALL_BEGIN}\n{{"name": {json.dumps(name)}, "arguments": {arguments}}}\n{CALL_END}'
