"""Programs that are written for Pie: ``async def main(input: dict)`` over ``import inferlet``, and their ``Pie.toml``.

Such a program takes any arguments: all of them are its ``input``. What it reads of it, or its ``Pie.toml``, tells their names.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from inferd.program.manifest import NAME, VERSION, read_table, read_toml
from inferd.program.signatures import parameters_of
from inferd.protocol import InvalidRequest

INPUT = "input"
MAX_PARAMETER = 128
"""Characters of a parameter's name."""
RETURNED = "inferlet returned"
"""Where ``set_return`` keeps a run's value, among what a connection shares."""
PIE_FILE = "Pie.toml"
IMPORT = re.compile(r"^[ \t]*(?:from|import)[ \t]+inferlet\b", re.MULTILINE)
DICT = re.compile(r"(?:typing\.)?[Dd]ict\b.*", re.DOTALL)
TYPES = {
    "string": "string", "str": "string", "integer": "integer", "int": "integer", "number": "number", "float": "number",
    "boolean": "boolean", "bool": "boolean", "array": "array", "list": "array", "object": "object", "dict": "object",
}  # fmt: skip
"""Types of parameters in a Pie.toml, and those of JSON Schema."""
SCHEMAS: Mapping[type, str] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "array",
    dict: "object",
}


@dataclass(frozen=True)
class PieFile:
    """What a Pie.toml says: ``parameters`` maps names to JSON Schemas. "" for what it does not say."""

    name: str = ""
    version: str = ""
    description: str = ""
    parameters: dict[str, dict[str, Any]] = field(default_factory=dict)


def imports_inferlet(source: str) -> bool:
    """Return True if a line of the source imports ``inferlet``."""
    return IMPORT.search(source) is not None


def takes_input(main: Callable[..., Any]) -> bool:
    """Return True if a function's one parameter is ``input``, a dict or without an annotation."""
    parameters = parameters_of(main)
    if list(parameters) != [INPUT]:
        return False
    annotation = parameters[INPUT].annotation
    if annotation is inspect.Parameter.empty:
        return True
    return is_dict(annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation)))


def is_dict(annotation: str) -> bool:
    """Return True if the source of an annotation is a dict's, or nothing."""
    return not annotation or DICT.fullmatch(annotation) is not None


def input_of(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of such a main: all that was given, or the object that was given as ``input`` and nothing else."""
    whole = arguments.get(INPUT)
    return arguments if len(arguments) == 1 and isinstance(whole, dict) else {INPUT: arguments}


def read_names(main: ast.AsyncFunctionDef) -> dict[str, Any]:
    """Return the keys that a main reads of its ``input`` (``input.get("name", default)``, ``input["name"]``), with their
    defaults where these are JSON literals, else None.
    """
    names: dict[str, Any] = {}
    for key, default in _reads(main):
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            names.setdefault(key.value, _literal(default))
    return names


def schema_like(value: Any) -> dict[str, Any]:
    """Return the schema of values of the same type."""
    kind = SCHEMAS.get(type(value))
    return {} if kind is None else {"type": kind}


def read_pie_file(text: str, filename: str) -> PieFile:
    """Return what a Pie.toml says. Raises InvalidRequest, which names the file, for one that is not TOML or has a bad name."""
    document = read_toml(text, filename)
    if "inferd" in read_table(document, "tool", filename):
        raise InvalidRequest(f"{filename}: [tool.inferd] belongs into pyproject.toml, or into the '# /// script' block")
    package, parameters = read_table(document, "package", filename), read_table(document, "parameters", filename)
    for key, pattern in (("name", NAME), ("version", VERSION)):
        value = package.get(key, "")
        if not isinstance(value, str) or (value and not pattern.fullmatch(value)):
            raise InvalidRequest(f"{filename}: [package] {key} must be text that matches {pattern.pattern}")
    description = package.get("description", "")
    return PieFile(
        package.get("name", ""),
        package.get("version", ""),
        description if isinstance(description, str) else "",
        {name: _parameter(name, value, filename) for name, value in parameters.items()},
    )


def _reads(main: ast.AsyncFunctionDef) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    for node in ast.walk(main):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _is_input(node.func.value):
            if node.func.attr == "get" and node.args:
                yield node.args[0], node.args[1] if len(node.args) > 1 else None
        elif isinstance(node, ast.Subscript) and _is_input(node.value):
            yield node.slice, None


def _is_input(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == INPUT


def _literal(node: ast.expr | None) -> Any:
    try:
        value = None if node is None else ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None
    return value if isinstance(value, (str, bool, int, float)) else None


def _parameter(name: str, value: Any, filename: str) -> dict[str, Any]:
    table = value if isinstance(value, dict) else {"type": value}
    if not 0 < len(name) <= MAX_PARAMETER or not name.isprintable():
        shown = repr(name[:MAX_PARAMETER])
        raise InvalidRequest(f"{filename}: {shown} is no parameter's name: 1 to {MAX_PARAMETER} printable characters")
    for key in ("type", "description"):
        if not isinstance(table.get(key, ""), str):
            raise InvalidRequest(f"{filename}: [parameters] {name}: {key} must be text")
    kind, description = TYPES.get(table.get("type", "").lower()), table.get("description")
    schema: dict[str, Any] = {} if kind is None else {"type": kind}
    return schema if description is None else {**schema, "description": description}
