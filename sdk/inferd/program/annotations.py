"""JSON Schemas read from annotations in source text, without running it.

For every type that :mod:`inferd.program.json_types` supports the schema is the same; an annotation that cannot be
understood from this one file, such as one that is imported from another, gives ``{}`` (anything), and is checked when the
program runs.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any, TypeVar

from inferd.program.json_types import (
    JSON_SCALARS,
    TEXT_TYPES,
    any_of,
    object_schema,
    set_schema,
    text_schema,
    tuple_schema,
)  # fmt: skip
from inferd.program.json_values import is_carried

NAMED: dict[str, dict[str, Any]] = {
    "Any": {},
    "object": {},
    "None": {"type": "null"},
    "bool": {"type": "boolean"},
    "int": {"type": "integer"},
    "float": {"type": "number"},
    "str": {"type": "string"},
    "list": {"type": "array"},
    "List": {"type": "array"},
    "dict": {"type": "object"},
    "Dict": {"type": "object"},
    **{name: {"type": "array", "items": {}} for name in ("tuple", "Tuple")},
    **{name: set_schema({}) for name in ("set", "Set", "frozenset", "FrozenSet")},
}
IMPORTED = {f"{kind.__module__}.{kind.__name__}": text_schema(kind) for kind in TEXT_TYPES}
"""Types that a program imports, by module and name."""
ENUM_BASES = {"Enum", "IntEnum", "StrEnum"}
FIELD_MARKS = {"Required", "NotRequired", "ReadOnly"}
SKIPPED_FIELDS = {"ClassVar", "KW_ONLY"}
NOT_LITERAL = (SyntaxError, ValueError, TypeError, MemoryError, RecursionError)
"""What the parser and ``literal_eval`` raise, the last two for what is nested too deeply."""
T = TypeVar("T")


class UnknownAnnotationError(Exception):
    """An annotation that this file alone does not explain."""


@dataclass(frozen=True)
class _Field:
    name: str
    annotation: ast.expr
    required: bool


class AnnotationReader:
    """Reads the annotations of one module; the classes that they name are collected in ``definitions``."""

    def __init__(self, module: ast.Module) -> None:
        self.definitions: dict[str, Any] = {}
        self._classes = {node.name: node for node in module.body if isinstance(node, ast.ClassDef)}
        self._aliases = dict(pair for node in module.body for pair in _aliases(node))
        self._imported = dict(pair for node in module.body for pair in _imports(node))
        self._open: list[str] = []  # aliases being followed

    def schema(self, annotation: ast.expr | None) -> dict[str, Any]:
        """Return the schema of an annotation; ``{}`` where there is none or it is not understood."""
        if annotation is None:
            return {}
        known = dict(self.definitions)
        try:
            return self._build(annotation)
        except UnknownAnnotationError:
            self.definitions = known  # what was begun may refer to what could not be read
            return {}

    def _build(self, node: ast.expr) -> dict[str, Any]:
        if isinstance(node, ast.Constant):
            return self._constant(node)
        if isinstance(node, (ast.Name, ast.Attribute)):
            return self._named(node)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            return any_of([self._build(member) for member in _union_members(node)])
        if isinstance(node, ast.Subscript):
            return self._generic(_last_name(node.value), node.slice)
        raise UnknownAnnotationError

    def _constant(self, node: ast.Constant) -> dict[str, Any]:
        if node.value is None:
            return dict(NAMED["None"])
        if isinstance(node.value, str):
            return self._build(_parsed(node.value))
        raise UnknownAnnotationError

    def _named(self, node: ast.Name | ast.Attribute) -> dict[str, Any]:
        name = _last_name(node)
        if name in self._classes:
            return self._class(self._classes[name])
        if name in self._aliases:
            return self._alias(name)
        imported = self._imported_name(node)
        if imported in IMPORTED:
            return dict(IMPORTED[imported])
        if name in NAMED:
            return dict(NAMED[name])
        raise UnknownAnnotationError

    def _imported_name(self, node: ast.Name | ast.Attribute) -> str:
        """Return the module and the name in it that a name stands for; "" where the file does not import it."""
        if isinstance(node, ast.Name):
            return self._imported.get(node.id, "")
        return f"{self._imported.get(_last_name(node.value), '')}.{node.attr}"

    def _alias(self, name: str) -> dict[str, Any]:
        if name in self._open:
            raise UnknownAnnotationError
        self._open.append(name)
        try:
            return self._build(self._aliases[name])
        finally:
            self._open.pop()

    def _generic(self, name: str, inner: ast.expr) -> dict[str, Any]:
        members = list(inner.elts) if isinstance(inner, ast.Tuple) else [inner]
        if name in ("list", "List"):
            return {"type": "array", "items": self._build(inner)}
        if name in ("set", "Set", "frozenset", "FrozenSet"):
            return set_schema(self._build(inner))
        if name in ("tuple", "Tuple") and members:
            return self._tuple(members)
        if name in ("dict", "Dict") and len(members) == 2 and _is_name(members[0], "str"):
            return {"type": "object", "additionalProperties": self._build(members[1])}
        if name == "Literal":
            return {"enum": [_scalar(member) for member in members]}
        if name == "Optional":
            return self._optional(inner)
        if name == "Union":
            return any_of([self._build(member) for member in members])
        if name == "Annotated" and len(members) == 2:
            return {**self._build(members[0]), "description": _text(members[1])}
        if name in FIELD_MARKS:
            return self._build(inner)
        raise UnknownAnnotationError

    def _tuple(self, members: list[ast.expr]) -> dict[str, Any]:
        if len(members) == 2 and isinstance(members[1], ast.Constant) and members[1].value is Ellipsis:
            return {"type": "array", "items": self._build(members[0])}
        return tuple_schema([self._build(member) for member in members])

    def _optional(self, inner: ast.expr) -> dict[str, Any]:
        schema = self._build(inner)
        null = dict(NAMED["None"])
        return {"anyOf": [*schema["anyOf"], null]} if list(schema) == ["anyOf"] else {"anyOf": [schema, null]}

    def _class(self, node: ast.ClassDef) -> dict[str, Any]:
        if any(_last_name(base) in ENUM_BASES for base in node.bases):
            return {"enum": _enum_values(node)}
        if node.name not in self.definitions:
            self.definitions[node.name] = {}  # taken before the fields are read: they may refer back
            self.definitions[node.name] = self._record(node)
        return {"$ref": f"#/$defs/{node.name}"}

    def _record(self, node: ast.ClassDef) -> dict[str, Any]:
        fields = {field.name: field for field in self._fields(node)}
        properties = {name: self._build(field.annotation) for name, field in fields.items()}
        return object_schema(properties, [name for name, field in fields.items() if field.required])

    def _fields(self, node: ast.ClassDef) -> list[_Field]:
        inherited: list[_Field] = []
        typed_dict = False
        for base in reversed(node.bases):
            name = _last_name(base)
            if name in self._classes:
                inherited += self._fields(self._classes[name])
                typed_dict = typed_dict or self._is_typed_dict(self._classes[name])
            elif name == "TypedDict":
                typed_dict = True
            elif name != "object":
                raise UnknownAnnotationError
        if not typed_dict and not any(_is_dataclass(decorator) for decorator in node.decorator_list):
            raise UnknownAnnotationError
        own = _typed_dict_fields(node) if typed_dict else _dataclass_fields(node)
        return [*inherited, *own]

    def _is_typed_dict(self, node: ast.ClassDef) -> bool:
        names = [_last_name(base) for base in node.bases]
        return "TypedDict" in names or any(
            self._is_typed_dict(self._classes[name]) for name in names if name in self._classes
        )


def _aliases(node: ast.stmt) -> list[tuple[str, ast.expr]]:
    if isinstance(node, ast.Assign):
        return [(target.id, node.value) for target in node.targets if isinstance(target, ast.Name)]
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
        return [(node.target.id, node.value)]
    name = getattr(node, "name", None)  # a `type X = ...` statement, which Python 3.11 does not know
    if type(node).__name__ == "TypeAlias" and isinstance(name, ast.Name):
        return [(name.id, getattr(node, "value", name))]
    return []


def _imports(node: ast.stmt) -> list[tuple[str, str]]:
    """Return the names that an import gives, each with the module, and the name in it, that it is."""
    if isinstance(node, ast.Import):
        return [(alias.asname or alias.name, alias.name) for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module is not None:
        return [(alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names]
    return []


def _dataclass_fields(node: ast.ClassDef) -> list[_Field]:
    fields = []
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and not _is_skipped(item):
            fields.append(_Field(item.target.id, item.annotation, not _has_default(item.value)))
    return fields


def _typed_dict_fields(node: ast.ClassDef) -> list[_Field]:
    total = all(_literal(keyword.value) is not False for keyword in node.keywords if keyword.arg == "total")
    items = [item for item in node.body if isinstance(item, ast.AnnAssign)]
    return [
        _Field(item.target.id, item.annotation, _mark(item.annotation, total))
        for item in items
        if isinstance(item.target, ast.Name)
    ]


def _mark(annotation: ast.expr, total: bool) -> bool:
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        annotation = _parsed(annotation.value)
    while isinstance(annotation, ast.Subscript) and _last_name(annotation.value) in FIELD_MARKS:
        name = _last_name(annotation.value)
        if name != "ReadOnly":
            return name == "Required"
        annotation = annotation.slice
    return total


def _is_skipped(item: ast.AnnAssign) -> bool:
    annotation = item.annotation
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        annotation = _parsed(annotation.value)
    outer = annotation.value if isinstance(annotation, ast.Subscript) else annotation
    if _last_name(outer) in SKIPPED_FIELDS:
        return True
    return _is_field_call(item.value) and _literal(_keyword(item.value, "init")) is False


def _has_default(value: ast.expr | None) -> bool:
    if value is None or not _is_field_call(value):
        return value is not None
    return _keyword(value, "default") is not None or _keyword(value, "default_factory") is not None


def _is_field_call(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Call) and _last_name(value.func) == "field"


def _keyword(value: ast.expr | None, name: str) -> ast.expr | None:
    keywords = value.keywords if isinstance(value, ast.Call) else []
    return next((keyword.value for keyword in keywords if keyword.arg == name), None)


def _is_dataclass(decorator: ast.expr) -> bool:
    target = decorator.func if isinstance(decorator, ast.Call) else decorator
    return _last_name(target) == "dataclass"


def _enum_values(node: ast.ClassDef) -> list[Any]:
    values: list[Any] = []
    for item in node.body:
        if isinstance(item, ast.Assign):
            value = _scalar(item.value)
            if not any(value == known and type(value) is type(known) for known in values):  # else an alias
                values.append(value)
        elif not isinstance(item, (ast.Expr, ast.FunctionDef, ast.Pass)):
            raise UnknownAnnotationError
    return values


def _union_members(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return [*_union_members(node.left), *_union_members(node.right)]
    return [node]


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _parsed(text: str) -> ast.expr:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except NOT_LITERAL:
        raise UnknownAnnotationError from None


def _literal(node: ast.expr | None) -> Any:
    try:
        return None if node is None else ast.literal_eval(node)
    except NOT_LITERAL:
        return None


def _scalar(node: ast.expr) -> Any:
    try:
        value = ast.literal_eval(node)
    except NOT_LITERAL:
        raise UnknownAnnotationError from None
    if type(value) not in JSON_SCALARS or not is_carried(value):
        raise UnknownAnnotationError
    return value


def _text(node: ast.expr) -> str:
    value = _scalar(node)
    if not isinstance(value, str):
        raise UnknownAnnotationError
    return value
