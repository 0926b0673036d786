"""What holds the arguments of a call to its tool: as an object of JSON, or one by one, each parameter to its own schema.

The text of a custom tool with a format is held to that, whatever else is left to the model.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from inferd.chat.call_forms import XmlForm
from inferd.chat.composed import AnyOf, InSequence, Repeated, Text, Until
from inferd.chat.request import INPUT, Tool
from inferd.chat.xml_call import is_text
from inferd.constraints import JsonText
from inferd.protocol import InvalidRequest, LimitExceeded
from inferd.schema import Choice, JsonSchema, OutputConstraint

LOCAL = ("#/$defs/", "#/definitions/")
"""Where references of a parameter's schema may lead."""
OF_TEXTS = ("pattern", "minLength", "maxLength", "format")
"""Keywords of texts."""
COMPOSING = (
    "allOf", "anyOf", "oneOf", "not", "if", "dependentSchemas", "dependentRequired", "patternProperties", "$ref",
)  # fmt: skip
"""Keywords of an object by which its parameters depend on each other, or have no names."""
REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
MAX_COPIED = 2_000_000
"""Characters that the copies of definitions in a request's tools have together: the engine compiles no larger constraint."""


def json_arguments(tool: Tool, parameters: Mapping[str, Any]) -> OutputConstraint:
    """Return a call's arguments as one object."""
    if tool.input_format is None:
        return JsonSchema(parameters)
    return InSequence([Text(f'{{"{INPUT}":'), JsonText(tool.input_format.constraint()), Text("}")])


class DefinitionRoom:
    """What is left for copies of definitions: each parameter with a reference gets those of its tool, so that they may take the
    product of what a client has sent. One is made for all tools of a request.
    """

    def __init__(self) -> None:
        self._left = MAX_COPIED

    def take(self, tool: Tool, size: int) -> None:
        """Take room for a copy. Raises LimitExceeded."""
        self._left -= size
        if self._left < 0:
            raise LimitExceeded(
                f"the tool {tool.name!r}: its parameters refer to definitions that would be copied for each of them",
                limit="tool_definitions", value=MAX_COPIED, raise_with="fewer or smaller $defs",
            )  # fmt: skip


class _Definitions:
    """The definitions in a tool's schema."""

    def __init__(self, tool: Tool, parameters: Mapping[str, Any], room: DefinitionRoom) -> None:
        self._tool = tool
        self._room = room
        self._shared = {key: parameters[key] for key in ("$defs", "definitions") if key in parameters}
        self._size = len(json.dumps(self._shared)) if self._shared else 0

    def beside(self, schema: Any) -> Any:
        """Return a parameter's schema with what its references lead to. Raises LimitExceeded."""
        if not self._shared or not any(_references(schema)):
            return schema
        self._room.take(self._tool, self._size)
        return {**self._shared, **schema} if isinstance(schema, Mapping) else schema


def xml_call(
    form: XmlForm, tool: Tool, parameters: Mapping[str, Any], room: DefinitionRoom, *, strict: bool
) -> OutputConstraint:
    """Return what a call of a tool looks like behind the mark that begins it.

    Raises InvalidRequest, which names the tool and the keyword, for what cannot be held in this format; unless ``strict`` that
    part is free.
    """
    begin, end = Text(form.call_head(tool.name)), Text(form.end)
    if tool.input_format is not None:
        held = Until(form.value_tail, tool.input_format.constraint())
        return InSequence([begin, Text(form.value_head(INPUT)), held, end])
    composing = next((key for key in COMPOSING if key in parameters), None)
    if composing is not None:
        _refuse(tool, composing, strict)
        return InSequence([begin, Until(form.end)])
    properties, required = _named(tool, parameters)
    defined = _Definitions(tool, parameters, room)
    members: list[OutputConstraint] = [begin]
    for name, schema in properties.items():
        one = InSequence([Text(form.value_head(name)), *_value(form, tool, schema, defined, strict)])
        members.append(one if name in required else Repeated(one, 0, 1))
    return InSequence([*members, end])


def python_call(tool: Tool, parameters: Mapping[str, Any], room: DefinitionRoom, *, strict: bool) -> OutputConstraint:
    """Return a call of a tool as Python writes it, the values of its arguments as JSON.

    They stand in the order of the parameters; in any, where none is required. Raises as :func:`xml_call`.
    """
    if tool.input_format is not None:
        held = JsonText(tool.input_format.constraint())
        return InSequence([Text(f"{tool.name}({INPUT}="), held, Text(")")])
    composing = next((key for key in COMPOSING if key in parameters), None)
    if composing is not None:
        _refuse(tool, composing, strict)
        return InSequence([Text(f"{tool.name}("), Until(")")])
    defined = _Definitions(tool, parameters, room)
    arguments: dict[str, OutputConstraint] = {}
    properties, names = _named(tool, parameters)
    for name, schema in properties.items():
        if name.isidentifier():
            value = JsonSchema(_json_schema(tool, schema, defined, strict))
            arguments[name] = InSequence([Text(f"{name}="), value])
        else:
            _refuse(tool, f"properties/{name}", strict)
    required = [name for name in arguments if name in names]
    listed = _in_order(arguments, required) if required else _in_any_order(list(arguments.values()))
    return InSequence([Text(f"{tool.name}("), *listed, Text(")")])


def _named(tool: Tool, parameters: Mapping[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    """Return the schemas of parameters by name, and which are required. Raises InvalidRequest for what is neither."""
    properties, required = parameters.get("properties") or {}, parameters.get("required") or []
    for key, value, kind in (("properties", properties, dict), ("required", required, list)):
        if not isinstance(value, kind):
            raise InvalidRequest(
                f"the tool {tool.name!r}: {key!r} of its parameters must be of type {kind.__name__}", param="tools"
            )
    return properties, required


def _in_order(arguments: Mapping[str, OutputConstraint], required: Sequence[str]) -> Iterator[OutputConstraint]:
    """Yield arguments, of which all but the ``required`` ones may be left out, with commas between those that are there."""
    met = False
    for name, argument in arguments.items():
        if name == required[0]:
            met = True
            yield argument
            continue
        one = InSequence([Text(", "), argument] if met else [argument, Text(", ")])
        yield one if name in required else Repeated(one, 0, 1)


def _in_any_order(arguments: Sequence[OutputConstraint]) -> Iterator[OutputConstraint]:
    """Yield up to as many arguments as there are. In their order they would take a rule for each pair of them."""
    if arguments:
        one = AnyOf(arguments)
        more = [Repeated(InSequence([Text(", "), one]), 0, len(arguments) - 1)] if len(arguments) > 1 else []
        yield Repeated(InSequence([one, *more]), 0, 1)


def _value(form: XmlForm, tool: Tool, schema: Any, defined: _Definitions, strict: bool) -> list[OutputConstraint]:
    """Return a parameter's value, and the end of it."""
    if is_text(schema):
        return _text_value(form, schema, strict)
    if _leads_out(schema):
        _refuse(tool, "$ref", strict)
        return [Until(form.value_tail)]
    return [JsonSchema(defined.beside(schema)), Text(form.value_tail)]


def _json_schema(tool: Tool, schema: Any, defined: _Definitions, strict: bool) -> Any:
    """Return the schema of a parameter that is written as JSON."""
    if _leads_out(schema):
        _refuse(tool, "$ref", strict)
        return {}
    return defined.beside(schema)


def _text_value(form: XmlForm, schema: Mapping[str, Any], strict: bool) -> list[OutputConstraint]:
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if values:
        return [Choice(list(values)), Text(form.value_tail)]
    asked = {key: schema[key] for key in OF_TEXTS if strict and key in schema}
    return [Until(form.value_tail, JsonSchema({"type": "string", **asked}) if asked else None)]


def _leads_out(schema: Any) -> bool:
    """Return True if a reference leads elsewhere."""
    return any(key == "$ref" and not reference.startswith(LOCAL) for key, reference in _references(schema))


def _references(schema: Any) -> Iterator[tuple[str, str]]:
    """Yield references, each behind its keyword."""
    if isinstance(schema, list):
        for part in schema:
            yield from _references(part)
    if isinstance(schema, Mapping):
        for key, part in schema.items():
            if key in REFERENCES and isinstance(part, str):
                yield key, part
            yield from _references(part)


def _refuse(tool: Tool, keyword: str, strict: bool) -> None:
    """Raise InvalidRequest for a keyword that cannot be held, if it has to be."""
    if strict:
        raise InvalidRequest(
            f"the tool {tool.name!r}: {keyword!r} cannot be held in the way in which this model writes calls "
            "(without quotes); leave it out, or leave the call to the model (tool_choice auto)",
            param="tools",
        )
