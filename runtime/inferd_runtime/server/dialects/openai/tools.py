"""The tools of a request, and which of them the model may or must call."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct

from inferd.chat import Tool, ToolChoice
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
    """A tool: functions are the only kind. All prompts are found by their beginning, whatever ``cache_control`` says."""

    function: FunctionDefinition
    cache_control: Any = None


class NamedFunction(Struct, forbid_unknown_fields=True):
    """A function by its name."""

    name: str


class FunctionChoice(Struct, tag="function", tag_field="type", forbid_unknown_fields=True):
    """This function has to be called."""

    function: NamedFunction


class AllowedTools(Struct, forbid_unknown_fields=True):
    """A choice of the tools."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[FunctionChoice], Meta(min_length=1)]


class AllowedToolsChoice(Struct, tag="allowed_tools", tag_field="type", forbid_unknown_fields=True):
    """Only these may be called."""

    allowed_tools: AllowedTools


OlderChoice: TypeAlias = Literal["none", "auto"] | NamedFunction
AnyToolChoice: TypeAlias = Literal["none", "auto", "required", "any"] | FunctionChoice | AllowedToolsChoice


def read_tools(tools: list[FunctionTool]) -> list[Tool]:
    """Return the tools. Raises InvalidRequest for a name that comes twice, and for arguments that are no object or told amiss."""
    return read_functions([(f"tools[{index}].function", tool.function) for index, tool in enumerate(tools)])


def read_functions(functions: list[tuple[str, FunctionDefinition]]) -> list[Tool]:
    """Return functions, each of which comes with its place in the request; see :func:`read_tools`."""
    read: list[Tool] = []
    for place, function in functions:
        if function.name in (each.name for each in read):
            raise refusal(f"{place}.name", f"there is a tool {function.name!r} already")
        parameters = {"type": "object", **(function.parameters or NO_ARGUMENTS)}
        if parameters["type"] != "object":
            raise refusal(f"{place}.parameters.type", 'arguments are an object: "object"')
        if function.required is not None and function.required != parameters.get("required", []):
            raise refusal(f"{place}.required", "it belongs into `parameters`")
        read.append(Tool(function.name, function.description or "", parameters))
    return read


def read_choice(choice: AnyToolChoice | None, parallel: bool, tools: list[Tool]) -> ToolChoice:
    """Return the choice. Raises InvalidRequest for one that asks for a tool which is not there."""
    match choice:
        case None:
            return ToolChoice("auto", [], parallel)
        case FunctionChoice(function):
            _check_known(function.name, "tool_choice.function.name", tools)
            return ToolChoice("required", [function.name], parallel=False)
        case AllowedToolsChoice(allowed):
            for index, each in enumerate(allowed.tools):
                place = f"tool_choice.allowed_tools.tools[{index}].function.name"
                _check_known(each.function.name, place, tools)
            return ToolChoice(allowed.mode, [each.function.name for each in allowed.tools], parallel)
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


def _check_known(name: str, place: str, tools: list[Tool]) -> None:
    if name not in (tool.name for tool in tools):
        raise refusal(place, f"there is no tool {name!r} among the tools")
