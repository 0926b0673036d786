"""The tools of a request, and which of them the model may or must call."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct

from inferd.chat import OutputFormat, Tool, ToolChoice, custom_tool
from inferd.chat.request import NO_ARGUMENTS
from inferd_runtime.server.dialects.refusals import refusal

MAX_FUNCTIONS = 128
"""As OpenAI has it."""
ToolName = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{1,64}\Z")]


class FunctionDefinition(Struct, forbid_unknown_fields=True):
    """A function. Its arguments are always held to the schema, strict or not. ``required``: what ``parameters`` say, once more,
    as Guardrails sends it. ``cache_control``: see :class:`FunctionTool`.
    """

    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    required: list[str] | None = None
    strict: bool | None = None
    cache_control: Any = None


class FunctionTool(Struct, tag="function", tag_field="type", forbid_unknown_fields=True):
    """A function as a tool. All prompts are found by their beginning, whatever ``cache_control`` says."""

    function: FunctionDefinition
    cache_control: Any = None


class AnyInput(Struct, tag="text", tag_field="type", forbid_unknown_fields=True):
    """A custom tool takes any text."""


class InputGrammar(Struct, forbid_unknown_fields=True):
    """What the input of a custom tool has to be a text of."""

    syntax: Literal["lark", "regex"]
    definition: str


class GrammarInput(Struct, tag="grammar", tag_field="type", forbid_unknown_fields=True):
    """A custom tool takes texts of a grammar, to which calls are always held."""

    grammar: InputGrammar


class CustomDefinition(Struct, forbid_unknown_fields=True):
    """A tool that takes a text in place of arguments."""

    name: ToolName
    description: str | None = None
    format: AnyInput | GrammarInput | None = None


class CustomTool(Struct, tag="custom", tag_field="type", forbid_unknown_fields=True):
    """A custom tool. ``cache_control``: see :class:`FunctionTool`."""

    custom: CustomDefinition
    cache_control: Any = None


class NamedFunction(Struct, forbid_unknown_fields=True):
    """A function by its name."""

    name: str


class FunctionChoice(Struct, tag="function", tag_field="type", forbid_unknown_fields=True):
    """This function has to be called."""

    function: NamedFunction


class CustomChoice(Struct, tag="custom", tag_field="type", forbid_unknown_fields=True):
    """This custom tool has to be called."""

    custom: NamedFunction


class AllowedTools(Struct, forbid_unknown_fields=True):
    """A choice of the tools."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[FunctionChoice | CustomChoice], Meta(min_length=1)]


class AllowedToolsChoice(Struct, tag="allowed_tools", tag_field="type", forbid_unknown_fields=True):
    """Only these may be called."""

    allowed_tools: AllowedTools


OlderChoice: TypeAlias = Literal["none", "auto"] | NamedFunction
AnyToolChoice: TypeAlias = (
    Literal["none", "auto", "required", "any"] | FunctionChoice | CustomChoice | AllowedToolsChoice
)
AnyTool: TypeAlias = FunctionTool | CustomTool


def functions_by_default(values: Any) -> Any:
    """Return tools, or calls of tools, of which those that do not say what they are are functions."""
    if not isinstance(values, list):
        return values
    return [{"type": "function", **each} if isinstance(each, dict) else each for each in values]


def read_tools(tools: list[AnyTool]) -> list[Tool]:
    """Return the tools. Raises InvalidRequest for a name that comes twice, and for arguments that are no object or told amiss."""
    read: list[Tool] = []
    for index, tool in enumerate(tools):
        if isinstance(tool, FunctionTool):
            place, one = f"tools[{index}].function", _function(tool.function, f"tools[{index}].function")
        else:
            place, one = f"tools[{index}].custom", _custom(tool.custom)
        _add(read, one, place)
    return read


def read_functions(functions: list[tuple[str, FunctionDefinition]]) -> list[Tool]:
    """Return functions, each of which comes with its place in the request; see :func:`read_tools`."""
    read: list[Tool] = []
    for place, function in functions:
        _add(read, _function(function, place), place)
    return read


def _add(read: list[Tool], tool: Tool, place: str) -> None:
    if tool.name in (each.name for each in read):
        raise refusal(f"{place}.name", f"there is a tool {tool.name!r} already")
    read.append(tool)


def _function(function: FunctionDefinition, place: str) -> Tool:
    parameters = {"type": "object", **(function.parameters or NO_ARGUMENTS)}
    if parameters["type"] != "object":
        raise refusal(f"{place}.parameters.type", 'arguments are an object: "object"')
    if function.required is not None and function.required != parameters.get("required", []):
        raise refusal(f"{place}.required", "it belongs into `parameters`")
    return Tool(function.name, function.description or "", parameters)


def _custom(custom: CustomDefinition) -> Tool:
    held = None
    if isinstance(custom.format, GrammarInput):
        held = OutputFormat(custom.format.grammar.syntax, custom.format.grammar.definition)
    return custom_tool(custom.name, custom.description or "", held)


def read_choice(choice: AnyToolChoice | None, parallel: bool, tools: list[Tool]) -> ToolChoice:
    """Return the choice. Raises InvalidRequest for one that asks for a tool which is not there."""
    match choice:
        case None:
            return ToolChoice("auto", [], parallel)
        case FunctionChoice() | CustomChoice():
            return ToolChoice("required", [_chosen(choice, "tool_choice", tools)], parallel=False)
        case AllowedToolsChoice(allowed):
            place = "tool_choice.allowed_tools.tools"
            names = [_chosen(each, f"{place}[{index}]", tools) for index, each in enumerate(allowed.tools)]
            return ToolChoice(allowed.mode, names, parallel)
        case _:
            if choice in ("required", "any") and not tools:
                raise refusal("tool_choice", f"{choice!r} needs tools")
            return ToolChoice("required" if choice == "any" else choice, [], parallel)


def read_older_choice(choice: OlderChoice | None, tools: list[Tool]) -> ToolChoice:
    """Return the choice among ``functions``, of which one is called at most."""
    if isinstance(choice, NamedFunction):
        _check_known(choice.name, "function_call.name", tools)
        return ToolChoice("required", [choice.name], parallel=False)
    return ToolChoice(choice or "auto", [], parallel=False)


def _chosen(choice: FunctionChoice | CustomChoice, place: str, tools: list[Tool]) -> str:
    """Return the name of a tool that is chosen as what it is."""
    if isinstance(choice, CustomChoice):
        _check_known(choice.custom.name, f"{place}.custom.name", [tool for tool in tools if tool.custom is not None])
        return choice.custom.name
    _check_known(choice.function.name, f"{place}.function.name", [tool for tool in tools if tool.custom is None])
    return choice.function.name


def _check_known(name: str, place: str, tools: list[Tool]) -> None:
    if name not in (tool.name for tool in tools):
        raise refusal(place, f"there is no tool {name!r} among the tools")
