"""``tool``: a Python function as something that a model may call."""

from __future__ import annotations

import asyncio
import functools
import inspect
import re
import sys
import typing
from collections.abc import Callable, Mapping
from typing import Any, overload

from inferd.program.json_types import SchemaBuilder, object_schema, structure
from inferd.program.json_values import is_carried, to_json_value
from inferd.program.signatures import parameters_of
from inferd.protocol import ConstraintError, InvalidRequest, ProgramError
from inferd.schema import parse_json
from inferd.tools.docstrings import described

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""What all ways of writing calls have room for."""
RESERVED = frozenset({"auto", "none", "required"})
"""Names that mean something else where a tool is chosen by its name."""
HAS_THREADS = sys.platform not in ("wasi", "emscripten")


class ToolFunction:
    """A function that a model may call, with its ``name``, ``description`` and ``parameters``, the JSON Schema of its arguments.

    Called by the program itself it is the function. :func:`tool` makes one.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        description: str,
        parameters: dict[str, Any],
        types: Mapping[str, Any] | None = None,
    ) -> None:
        functools.update_wrapper(self, function)
        self.name, self.description, self.parameters = name, description, parameters
        self._function = function
        self._types = types
        """Of the function's parameters; None: it gets plain values."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<tool {self.name}>"

    async def run(self, arguments: str) -> Any:
        """Call the function with the JSON text of its arguments, and return what it returns.

        A function that is not ``async`` runs in a thread, so that others go on; in the sandbox, which has none, it runs here.
        Raises InvalidRequest, which names the argument, for arguments that do not fit, and what the function raises.
        """
        values = self._arguments(arguments)
        if inspect.iscoroutinefunction(self._function) or not HAS_THREADS:
            result = self._function(**values)
        else:
            result = await asyncio.to_thread(self._function, **values)
        return await result if inspect.isawaitable(result) else result

    def _arguments(self, text: str) -> dict[str, Any]:
        try:
            values = parse_json(text or "{}")
        except ConstraintError as error:
            raise InvalidRequest(f"the arguments of {self.name} are not complete JSON: {error.message}") from None
        if not isinstance(values, dict):
            raise InvalidRequest(f"the arguments of {self.name} must be an object")
        return values if self._types is None else self._structured(values, self._types)

    def _structured(self, values: dict[str, Any], types: Mapping[str, Any]) -> dict[str, Any]:
        for name in values:
            if name not in types:
                raise InvalidRequest(
                    f"{self.name} has no parameter {name[:80]!r}; it takes {', '.join(types) or 'nothing'}"
                )
        for name in self.parameters["required"]:
            if name not in values:
                raise InvalidRequest(f"{self.name}: the parameter {name!r} is missing")
        return {name: structure(types[name], value, name) for name, value in values.items()}


@overload
def tool(function: Callable[..., Any]) -> ToolFunction: ...


@overload
def tool(
    *, name: str | None = None, description: str | None = None, parameters: Mapping[str, Any] | None = None
) -> Callable[[Callable[..., Any]], ToolFunction]: ...


@overload
def tool(
    function: Callable[..., Any],
    *,
    name: str | None = None,
    description: str | None = None,
    parameters: Mapping[str, Any] | None = None,
) -> ToolFunction: ...


def tool(
    function: Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    description: str | None = None,
    parameters: Mapping[str, Any] | None = None,
) -> ToolFunction | Callable[[Callable[..., Any]], ToolFunction]:
    """Make a function, ``async`` or not, a tool: ``@inferd.tool``, or ``@inferd.tool(name="search")``.

    Its name is the function's, its description the first paragraph of the docstring. The schema of its arguments is made from
    the annotations, which are those that a program's ``main`` may have: scalars, lists, dicts, ``Literal``, ``Optional``, enums,
    dataclasses, TypedDicts, pydantic models, in each other as well. What is said of a parameter is the text of
    ``Annotated[T, "text"]``, or the ``description`` of an object there (such as pydantic's ``Field``), or its entry in the
    docstring's ``Args:``.

    ``parameters``: a JSON Schema of an object instead, which the model is held to; the function gets plain values by name.

    Raises InvalidRequest, which names the tool and the parameter, for a parameter without an annotation, of a type that JSON
    cannot hold, or without a name of its own; and for a name that is not 1 to 64 of the characters ``A-Z a-z 0-9 _ -``.
    """
    if function is None:
        return lambda made: tool(made, name=name, description=description, parameters=parameters)
    if not callable(function):
        raise InvalidRequest(f"a tool must be a function, not {type(function).__name__}")
    label = _checked_name(name if name is not None else getattr(function, "__name__", type(function).__name__))
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidRequest(f"the tool {label} yields: return what the model is to get, such as a list")
    summary, told = described(function)
    types = _types(function, label) if parameters is None else None
    schema = _schema(function, label, types, told) if types is not None else _given(parameters or {}, label)
    text = summary if description is None else description
    if not isinstance(text, str) or not is_carried(text):
        raise InvalidRequest(f"the tool {label}: the description is no text")
    return ToolFunction(function, label, text, schema, types)


def _checked_name(name: Any) -> str:
    if not isinstance(name, str) or not NAME.fullmatch(name) or name in RESERVED:
        raise InvalidRequest(
            f"a tool cannot be called {str(name)[:80]!r}: 1 to 64 of A-Z a-z 0-9 _ -, and none of {', '.join(sorted(RESERVED))}"
        )
    return name


def _given(parameters: Mapping[str, Any], label: str) -> dict[str, Any]:
    try:
        schema: dict[str, Any] = to_json_value(dict(parameters), "parameters")
    except (ProgramError, TypeError, ValueError) as error:
        raise InvalidRequest(f"the tool {label}: parameters are no JSON Schema: {error}") from None
    if schema.get("type", "object") != "object" or not is_carried(schema):
        raise InvalidRequest(f"the tool {label}: parameters must be the JSON Schema of an object")
    return schema


def _types(function: Callable[..., Any], label: str) -> dict[str, Any]:
    """Return the annotations of a function's parameters, by name."""
    parameters: Mapping[str, inspect.Parameter] = {}
    try:
        parameters = parameters_of(function)
        hints = typing.get_type_hints(_annotated(function), include_extras=True)
    except (NameError, TypeError, ValueError, SyntaxError, AttributeError) as error:
        raise InvalidRequest(_unreadable(parameters, label, error)) from None
    for name, parameter in parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise InvalidRequest(
                f"the tool {label}, parameter {name}: give every argument a name of its own, without * and /"
            )
        if name not in hints:
            raise InvalidRequest(
                f"the tool {label}, parameter {name}: it has no annotation: write one, such as `{name}: str`, or pass parameters="
            )
    return {name: hints[name] for name in parameters}


def _unreadable(parameters: Mapping[str, inspect.Parameter], label: str, error: Exception) -> str:
    """Return what is told of annotations that cannot be evaluated: whose it is, where it is a text that names what is missing."""
    missing = getattr(error, "name", None)
    notes = {name: parameter.annotation for name, parameter in parameters.items()}
    culprit = next(
        (name for name, note in notes.items() if missing and isinstance(note, str) and missing in note), None
    )
    place = f"the tool {label}" + (f", parameter {culprit}" if culprit else "")
    return f"{place}: its annotation cannot be read: {error}; name a type that the module knows, or pass parameters="


def _schema(
    function: Callable[..., Any], label: str, types: Mapping[str, Any], told: Mapping[str, str]
) -> dict[str, Any]:
    """Return the schema of a function's parameters."""
    builder, properties, required = SchemaBuilder(), {}, []
    for name, parameter in parameters_of(function).items():
        place = f"the tool {label}, parameter {name}"
        properties[name] = _property(builder, types[name], parameter, place, told.get(name, ""))
        required += [name] if parameter.default is parameter.empty else []
    schema = object_schema(properties, required)
    return {**schema, "$defs": builder.definitions} if builder.definitions else schema


def _annotated(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return what has the annotations of a callable: for an object with ``__call__`` that method."""
    plain = inspect.unwrap(function)
    while isinstance(plain, functools.partial):
        plain = plain.func
    is_function = inspect.isroutine(plain) or isinstance(plain, type)
    return plain if is_function else type(plain).__call__


def _property(builder: SchemaBuilder, hint: Any, parameter: inspect.Parameter, place: str, text: str) -> dict[str, Any]:
    try:
        schema = builder.build(hint, place)
    except RecursionError:
        raise InvalidRequest(f"{place}: an alias that contains itself is not supported: use a class") from None
    except InvalidRequest as error:  # of a field of a class: the parameter is what the author has before him
        message = error.message if error.message.startswith(place) else f"{place}: {error.message}"
        raise InvalidRequest(message) from None
    if text:
        schema = {"description": text, **schema}
    if parameter.default is parameter.empty:
        return schema
    try:
        default = to_json_value(parameter.default, "default")
    except ProgramError:
        return schema
    return {**schema, "default": default} if is_carried(default) else schema
