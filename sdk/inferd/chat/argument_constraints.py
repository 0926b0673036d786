"""What holds the arguments of a call to its tool: as an object of JSON, or one by one, each parameter to its own schema.

The text of a custom tool with a format is held to that, whatever else is left to the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from inferd.chat.call_forms import XmlForm
from inferd.chat.composed import AnyOf, InSequence, Repeated, Text, Until
from inferd.chat.request import INPUT, Tool
from inferd.chat.xml_call import is_text
from inferd.constraints import JsonText
from inferd.protocol import InvalidRequest
from inferd.schema import Choice, JsonSchema, OutputConstraint

LOCAL = ("#/$defs/", "#/definitions/")
"""Where references of a parameter's schema may lead."""
OF_TEXTS = ("pattern", "minLength", "maxLength", "format")
"""Keywords of texts."""
COMPOSING = (
    "allOf", "anyOf", "oneOf", "not", "if", "dependentSchemas", "dependentRequired", "patternProperties", "$ref",
)  # fmt: skip
"""Keywords of an object by which its parameters depend on each other, or have no names."""


def json_arguments(tool: Tool, parameters: Mapping[str, Any]) -> OutputConstraint:
    """Return a call's arguments as one object."""
    if tool.input_format is None:
        return JsonSchema(parameters)
    return InSequence([Text(f'{{"{INPUT}":'), JsonText(tool.input_format.constraint()), Text("}")])


def xml_call(form: XmlForm, tool: Tool, parameters: Mapping[str, Any], *, strict: bool) -> OutputConstraint:
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
    properties, required = parameters.get("properties") or {}, parameters.get("required") or []
    members: list[OutputConstraint] = [begin]
    for name, schema in properties.items():
        one = InSequence([Text(form.value_head(name)), *_value(form, tool, schema, parameters, strict)])
        members.append(one if name in required else Repeated(one, 0, 1))
    return InSequence([*members, end])


def python_call(tool: Tool, parameters: Mapping[str, Any], *, strict: bool) -> OutputConstraint:
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
    arguments: dict[str, OutputConstraint] = {}
    for name, schema in (parameters.get("properties") or {}).items():
        if name.isidentifier():
            value = JsonSchema(_json_schema(tool, schema, parameters, strict))
            arguments[name] = InSequence([Text(f"{name}="), value])
        else:
            _refuse(tool, f"properties/{name}", strict)
    required = [name for name in arguments if name in (parameters.get("required") or [])]
    listed = _in_order(arguments, required) if required else _in_any_order(list(arguments.values()))
    return InSequence([Text(f"{tool.name}("), *listed, Text(")")])


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


def _value(
    form: XmlForm, tool: Tool, schema: Any, parameters: Mapping[str, Any], strict: bool
) -> list[OutputConstraint]:
    """Return a parameter's value, and the end of it."""
    if is_text(schema):
        return _text_value(form, schema, strict)
    if _leads_out(schema):
        _refuse(tool, "$ref", strict)
        return [Until(form.value_tail)]
    return [JsonSchema(_with_definitions(schema, parameters)), Text(form.value_tail)]


def _json_schema(tool: Tool, schema: Any, parameters: Mapping[str, Any], strict: bool) -> Any:
    """Return the schema of a parameter that is written as JSON."""
    if _leads_out(schema):
        _refuse(tool, "$ref", strict)
        return {}
    return _with_definitions(schema, parameters)


def _text_value(form: XmlForm, schema: Mapping[str, Any], strict: bool) -> list[OutputConstraint]:
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if values:
        return [Choice(list(values)), Text(form.value_tail)]
    asked = {key: schema[key] for key in OF_TEXTS if strict and key in schema}
    return [Until(form.value_tail, JsonSchema({"type": "string", **asked}) if asked else None)]


def _with_definitions(schema: Any, parameters: Mapping[str, Any]) -> Any:
    """Return a parameter's schema with what its references lead to."""
    shared = {key: parameters[key] for key in ("$defs", "definitions") if key in parameters}
    return {**shared, **schema} if isinstance(schema, Mapping) else schema


def _leads_out(schema: Any) -> bool:
    """Return True if a reference leads elsewhere."""
    return any(not reference.startswith(LOCAL) for reference in _references(schema))


def _references(schema: Any) -> list[str]:
    if isinstance(schema, list):
        return [found for part in schema for found in _references(part)]
    if not isinstance(schema, Mapping):
        return []
    found = [found for part in schema.values() for found in _references(part)]
    reference = schema.get("$ref")
    return [*found, reference] if isinstance(reference, str) else found


def _refuse(tool: Tool, keyword: str, strict: bool) -> None:
    """Raise InvalidRequest for a keyword that cannot be held, if it has to be."""
    if strict:
        raise InvalidRequest(
            f"the tool {tool.name!r}: {keyword!r} cannot be held in the way in which this model writes calls "
            "(without quotes); leave it out, or leave the call to the model (tool_choice auto)",
            param="tools",
        )
