"""A program's interface: ``main``'s parameters and result, read from source text or applied to a live function."""

from __future__ import annotations

import ast
import inspect
import typing
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from inferd.program.annotations import NOT_LITERAL, AnnotationReader
from inferd.program.json_types import structure, with_definitions
from inferd.program.json_values import is_carried, to_json_value
from inferd.program.manifest import Manifest, script_manifest
from inferd.program.pie import INPUT, PieFile, imports_inferlet, is_dict, read_names, schema_like
from inferd.program.signatures import parameters_of
from inferd.protocol import InvalidRequest, ProgramError, ProgramSyntaxError

MAIN = "main"
MAX_TEXT = 2000
"""Characters of an annotation or a default that are shown."""


@dataclass(frozen=True)
class Parameter:
    """One parameter of ``main``.

    ``annotation`` and ``default_text`` are source text ("" where there is none), cut at MAX_TEXT. ``schema`` may refer to
    ``Interface.definitions`` by ``#/$defs/...``; it is ``{}`` where the file alone does not tell. ``default`` is
    the value of a default that is a JSON literal, and None for any other one.
    """

    name: str
    annotation: str
    schema: dict[str, Any]
    required: bool
    default: Any = None
    default_text: str = ""


@dataclass(frozen=True)
class Interface:
    """Parameters and result of a program. ``doc`` is ``main``'s docstring, else the module's.

    ``takes_any``: it takes any arguments, as a program that is written for Pie does; ``parameters`` are those that are known.
    """

    manifest: Manifest
    parameters: list[Parameter]
    doc: str = ""
    returns: str = ""
    returns_schema: dict[str, Any] = field(default_factory=dict)
    definitions: dict[str, Any] = field(default_factory=dict)
    takes_any: bool = False

    @property
    def arguments_schema(self) -> dict[str, Any]:
        """The JSON Schema of the arguments, as one object; complete in itself."""
        properties = {parameter.name: _with_default(parameter) for parameter in self.parameters}
        schema: dict[str, Any] = {
            "type": "object",
            "properties": properties,
            "required": [parameter.name for parameter in self.parameters if parameter.required],
            "additionalProperties": self.takes_any,
        }
        return {**schema, "$defs": self.definitions} if self.definitions else schema


def describe_source(source: str, filename: str) -> Interface:
    """Read the interface of a program without running any of it.

    ``filename`` stands in messages and names a program that has no name. Raises ProgramSyntaxError for source that
    does not parse (``detail``: file, line, column, text), ProgramError when there is no top-level ``async def
    main`` or it has ``*`` or positional-only parameters, and InvalidRequest for a bad PEP 723 block.
    """
    pie = PieFile() if imports_inferlet(source) else None
    return describe_module(_parse(source, filename), script_manifest(source, filename), filename, pie)


def describe_module(module: ast.Module, manifest: Manifest, filename: str, pie: PieFile | None = None) -> Interface:
    """Read the interface of a program that is parsed already; see :func:`describe_source`.

    ``pie``: what its Pie.toml says, for a program that is written for Pie.
    """
    main = _find_main(module, filename)
    reader = AnnotationReader(module)
    parameters = _parameters(main, reader)
    takes_any = pie is not None and len(parameters) == 1 and _is_input(parameters[0])
    if pie is not None and takes_any:
        parameters = _pie_parameters(main, pie)
    definitions = dict(reader.definitions)
    returns = AnnotationReader(module)
    return Interface(
        manifest=manifest,
        parameters=parameters,
        takes_any=takes_any,
        doc=ast.get_docstring(main) or ast.get_docstring(module) or ("" if pie is None else pie.description),
        returns=_text_of(main.returns),
        returns_schema=with_definitions(returns.schema(main.returns), returns.definitions),
        definitions=definitions,
    )


def coerce_arguments(main: Callable[..., Any], args: dict[str, Any]) -> dict[str, Any]:
    """Return JSON values as the keyword arguments that ``main``'s annotations ask for.

    Dataclasses, enums and TypedDicts are built; a parameter without an annotation takes any value; a parameter with
    a default may be left out, and then is left out of the result. Raises InvalidRequest, which names the parameter
    (and the place inside it), for a missing, unknown or ill-typed argument and for an annotation that is not
    supported.
    """
    parameters = parameters_of(main)
    for parameter in parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise InvalidRequest(
                f"main: the parameter {parameter} is not supported: give every argument a name of its own"
            )
    _check_names(parameters, args)
    hints = _hints(main)
    return {name: structure(hints.get(name, Any), args[name], name) for name in parameters if name in args}


def to_result(value: Any) -> Any:
    """Return what ``main`` returned, as a JSON value. Raises ProgramError, which names the place, for what JSON cannot
    hold.
    """
    return to_json_value(value, "result")


def _check_names(parameters: typing.Mapping[str, inspect.Parameter], args: dict[str, Any]) -> None:
    for name in args:
        if name not in parameters:
            raise InvalidRequest(f"there is no parameter {name!r}; main takes {', '.join(parameters) or 'nothing'}")
    for name, parameter in parameters.items():
        if parameter.default is parameter.empty and name not in args:
            raise InvalidRequest(f"the parameter {name!r} is missing")


def _hints(main: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(main, include_extras=True)
    except (NameError, TypeError, SyntaxError, AttributeError) as error:
        raise InvalidRequest(f"main: an annotation cannot be evaluated: {error}") from error


def _with_default(parameter: Parameter) -> dict[str, Any]:
    known = parameter.default is not None or parameter.default_text == "None"
    return {**parameter.schema, "default": parameter.default} if known else parameter.schema


def _parse(source: str, filename: str) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about the program are not for its reader
            return ast.parse(source, filename)
    except SyntaxError as error:
        where = {"file": filename, "line": error.lineno, "column": error.offset, "text": (error.text or "").rstrip()}
        raise ProgramSyntaxError(f"{filename}:{error.lineno}: {error.msg}", **where) from None
    except (ValueError, RecursionError, MemoryError) as error:  # null bytes; nesting that the parser gives up on
        raise ProgramSyntaxError(
            f"{filename} cannot be parsed: {error or type(error).__name__}", file=filename
        ) from None


def _find_main(module: ast.Module, filename: str) -> ast.AsyncFunctionDef:
    found = [node for node in module.body if isinstance(node, ast.AsyncFunctionDef) and node.name == MAIN]
    if found:
        _check_called_once(module, filename)
        return found[-1]  # as at run time: the last definition is the one that counts
    if any(isinstance(node, ast.FunctionDef) and node.name == MAIN for node in module.body):
        raise ProgramError(f"{filename}: main must be `async def main`")
    raise ProgramError(
        f"{filename}: there is no `async def main` at the top level: write it there, also where it awaits another file's"
    )


def _check_called_once(module: ast.Module, filename: str) -> None:
    for statement in module.body:
        nodes = list(ast.walk(statement)) if isinstance(statement, ast.Expr | ast.Assign) else []
        called = [ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)]
        if MAIN in called and not any(isinstance(node, ast.Lambda) for node in nodes):
            raise ProgramError(
                f"{filename}:{statement.lineno}: the runtime calls main, and so does this line, which would run it twice: leave "
                'it out, or write it under `if __name__ == "__main__":`'
            )


def _parameters(main: ast.AsyncFunctionDef, reader: AnnotationReader) -> list[Parameter]:
    spec = main.args
    unnamed = [*spec.posonlyargs, *(arg for arg in (spec.vararg, spec.kwarg) if arg is not None)]
    if unnamed:
        raise ProgramError(
            f"main: the parameter {unnamed[0].arg} is not supported: give every argument a name of its own"
        )
    missing = len(spec.args) - len(spec.defaults)
    defaults: list[ast.expr | None] = [*([None] * missing), *spec.defaults, *spec.kw_defaults]
    return [
        _parameter(arg, default, reader) for arg, default in zip([*spec.args, *spec.kwonlyargs], defaults, strict=True)
    ]


def _is_input(parameter: Parameter) -> bool:
    return parameter.name == INPUT and is_dict(parameter.annotation)


def _pie_parameters(main: ast.AsyncFunctionDef, pie: PieFile) -> list[Parameter]:
    read = read_names(main)
    parameters: list[Parameter] = []
    for name in {**pie.parameters, **read}:
        value = read.get(name)
        default = value if is_carried(value) else None
        schema = pie.parameters.get(name) or schema_like(default)
        parameters.append(
            Parameter(name, "", schema, False, default, "" if default is None else repr(default)[:MAX_TEXT])
        )
    return parameters


def _parameter(arg: ast.arg, default: ast.expr | None, reader: AnnotationReader) -> Parameter:
    return Parameter(
        name=arg.arg,
        annotation=_text_of(arg.annotation),
        schema=reader.schema(arg.annotation),
        required=default is None,
        default=None if default is None else _json_literal(default),
        default_text=_text_of(default),
    )


def _text_of(node: ast.expr | None) -> str:
    """Return an expression's source, cut at MAX_TEXT; "..." for one that Python cannot write again."""
    try:
        text = "" if node is None else ast.unparse(node)
    except (ValueError, RecursionError):  # a number of more digits than Python writes; too deep
        return "..."
    return text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + "..."


def _json_literal(node: ast.expr) -> Any:
    """Return the value of a literal; None for what is none, and for what no message can carry."""
    try:
        value = to_json_value(ast.literal_eval(node), "default")
    except (*NOT_LITERAL, ProgramError):
        return None
    return value if is_carried(value) else None
