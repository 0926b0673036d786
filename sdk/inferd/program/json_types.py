"""Converts Python types to JSON Schema, and JSON values to instances of those types.

Supported: None, bool, int, float, str, Any, list[T], tuples, set[T] and frozenset[T] (arrays in JSON), dict[str, T], Literal,
Enum, Optional and other unions, date, datetime, time, UUID and Decimal (text in JSON), dataclasses, TypedDicts (total or not),
type aliases, NewType, Annotated with a description string, all nested and recursive, written as types or as strings; and
pydantic models, whose own methods do the work.
"""

from __future__ import annotations

import dataclasses
import enum
import re
import types
import typing
from collections.abc import Callable, Iterable
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Literal, NoReturn
from uuid import UUID

from inferd.program.pydantic_models import REFERENCE, is_pydantic, pydantic_parts, pydantic_schema, renamed, validated
from inferd.program.replaced_types import instead_of
from inferd.protocol import InvalidRequest

PLAIN_TYPES: dict[Any, dict[str, Any]] = {
    Any: {},
    object: {},
    None: {"type": "null"},
    type(None): {"type": "null"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    list: {"type": "array"},
    dict: {"type": "object"},
}
DIGITS = r"^-?[0-9]{1,40}(\.[0-9]{1,40})?(E[+-]?[0-9]{1,18})?$"
"""A Decimal's text, as ``str`` writes it. Bounded, as a model that has begun a fraction may never end it."""


def decimal_of(text: str) -> Decimal:
    """Return a JSON text as a number. Raises ValueError."""
    if not re.fullmatch(DIGITS, text):
        raise ValueError(f"must be a decimal number, with 40 digits at most on each side, not {_shown(text)}")
    try:
        return Decimal(text)
    except ArithmeticError:
        raise ValueError(f"{_shown(text)} is too large") from None


TEXT_TYPES: dict[Any, tuple[dict[str, str], Callable[[str], Any]]] = {
    date: ({"format": "date"}, date.fromisoformat),
    datetime: ({"format": "date-time"}, datetime.fromisoformat),
    time: ({"format": "time"}, time.fromisoformat),
    UUID: ({"format": "uuid"}, UUID),
    Decimal: ({"pattern": DIGITS}, decimal_of),
}
"""Types that are text in JSON: what their schema says of the text, and what reads it."""
BARE: dict[Any, Any] = {
    **dict.fromkeys((tuple, typing.Tuple), tuple[Any, ...]),  # noqa: UP006
    **dict.fromkeys((set, typing.Set), set[Any]),  # noqa: UP006
    **dict.fromkeys((frozenset, typing.FrozenSet), frozenset[Any]),  # noqa: UP006
}
"""What types of arrays say without type arguments."""
SETS = (set, frozenset)
FIELD_MARKS = {getattr(typing, name) for name in ("Required", "NotRequired", "ReadOnly") if hasattr(typing, name)}
JSON_SCALARS = (str, int, float, bool, type(None))
MAX_DEPTH = 200


@dataclasses.dataclass(frozen=True)
class SchemaField:
    """One field of a dataclass or a TypedDict."""

    name: str
    type: Any
    required: bool


def object_schema(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    """Return the closed object of a class with fields."""
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def text_schema(kind: Any) -> dict[str, Any]:
    """Return the schema of one of TEXT_TYPES."""
    return {"type": "string", **TEXT_TYPES[kind][0]}


def set_schema(items: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a set's array."""
    return {"type": "array", "items": items, "uniqueItems": True}


def tuple_schema(places: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the schema of the array of a tuple with a type for each place."""
    return {"type": "array", "prefixItems": places, "minItems": len(places), "maxItems": len(places)}


def any_of(schemas: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a schema for values that one of several schemas accepts."""
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def with_definitions(root: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """Put ``$defs`` beside the root; a root that nothing else refers to stands at the top instead of in ``$defs``."""
    name = str(root.get("$ref", "")).removeprefix("#/$defs/")
    if name in definitions and not _refers(definitions, name):
        rest = {key: value for key, value in definitions.items() if key != name}
        root, definitions = definitions[name], rest
    return {**root, "$defs": definitions} if definitions else root


def _refers(schema: Any, name: str) -> bool:
    if isinstance(schema, dict):
        return schema.get("$ref") == f"#/$defs/{name}" or any(_refers(value, name) for value in schema.values())
    return isinstance(schema, list) and any(_refers(value, name) for value in schema)


def type_name(kind: Any) -> str:
    """Return the name of a type as error messages show it."""
    return kind.__name__ if isinstance(kind, type) and not typing.get_args(kind) else str(kind).replace("typing.", "")


def fields_of(kind: Any, path: str) -> list[SchemaField]:
    """Return the fields of a dataclass or TypedDict. Raises InvalidRequest where an annotation cannot be evaluated."""
    try:
        hints = typing.get_type_hints(kind, include_extras=True)
    except (NameError, TypeError, SyntaxError, AttributeError) as error:
        why = f"{error}; use types of its module's top level" if isinstance(error, NameError) else error
        raise InvalidRequest(f"{path}: an annotation of {type_name(kind)} cannot be evaluated: {why}") from error
    if typing.is_typeddict(kind):
        return [SchemaField(name, _unmarked(hint), _is_required(kind, name, hint)) for name, hint in hints.items()]
    for name, hint in hints.items():
        if isinstance(hint, dataclasses.InitVar) and not hasattr(kind, name):
            _refuse(hint, f"{path}.{name}", "no instance keeps it: use a field, or give it a default")
    return [SchemaField(f.name, hints[f.name], _has_no_default(f)) for f in dataclasses.fields(kind) if f.init]


def _has_no_default(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _is_required(kind: Any, name: str, hint: Any) -> bool:
    # __required_keys__ is wrong for string annotations, where the marks were not evaluated yet: they are now.
    while typing.get_origin(hint) in FIELD_MARKS | {typing.Annotated}:
        if typing.get_origin(hint) in (typing.Required, typing.NotRequired):
            return typing.get_origin(hint) is typing.Required
        hint = typing.get_args(hint)[0]
    return name in kind.__required_keys__


def _unmarked(hint: Any) -> Any:
    while typing.get_origin(hint) in FIELD_MARKS:
        hint = typing.get_args(hint)[0]
    return hint


def _resolved(kind: Any) -> Any:
    """Return the type behind aliases and NewType."""
    while True:
        if isinstance(kind, typing.NewType):
            kind = kind.__supertype__
        elif type(kind).__name__ == "TypeAliasType":
            kind = kind.__value__
        elif typing.get_origin(kind) in (list, dict) and not typing.get_args(kind):
            return typing.get_origin(kind)  # typing.List and typing.Dict
        else:
            return BARE.get(kind, kind) if isinstance(kind, typing.Hashable) else kind


def _refuse(kind: Any, path: str, why: str = "") -> NoReturn:
    raise InvalidRequest(f"{path}: {type_name(kind)} is not supported: {why or instead_of(kind)}")


def _is_plain(kind: Any) -> bool:
    return isinstance(kind, typing.Hashable) and kind in PLAIN_TYPES


def _is_text(kind: Any) -> bool:
    return isinstance(kind, type) and kind in TEXT_TYPES


def _is_union(origin: Any) -> bool:
    return origin is typing.Union or origin is types.UnionType


def _is_record(kind: Any) -> bool:
    return isinstance(kind, type) and (dataclasses.is_dataclass(kind) or typing.is_typeddict(kind))


def _check_literals(values: Iterable[Any], kind: Any, path: str) -> list[Any]:
    listed = list(values)
    for value in listed:
        if type(value) not in JSON_SCALARS:
            _refuse(kind, path, f"{value!r} is not a JSON value: use text, numbers, True, False and None")
    return listed


def _dict_value_type(kind: Any, path: str) -> Any:
    key, value = typing.get_args(kind)
    if key is not str:
        _refuse(kind, path, "JSON keys are strings, so it must be dict[str, ...]")
    return value


def _hashable_item(kind: Any, path: str) -> Any:
    item = typing.get_args(kind)[0]
    if getattr(typing.get_origin(item) or item, "__hash__", None) is None:
        _refuse(kind, path, f"a set cannot hold {type_name(item)}: use list[T], or a frozen dataclass in the set")
    return item


def _is_endless(kind: Any) -> bool:
    return typing.get_args(kind)[-1:] == (Ellipsis,)


def _description(kind: Any, path: str) -> tuple[Any, str]:
    inner, *extras = typing.get_args(kind)
    text = extras[0] if isinstance(extras[0], str) else getattr(extras[0], "description", None)
    if len(extras) != 1 or not isinstance(text, str) or getattr(extras[0], "metadata", None):
        _refuse(
            kind,
            path,
            "Annotated takes one description string here, or an object that says nothing else; limits go into a pydantic model",
        )
    return inner, text


class SchemaBuilder:
    """Turns types into schemas, collecting the named ones in ``definitions``."""

    def __init__(self) -> None:
        self.definitions: dict[str, Any] = {}
        self._names: dict[type[Any], str] = {}

    def build(self, kind: Any, path: str) -> dict[str, Any]:
        """Return the schema of a type; ``path`` names the place in messages. Raises InvalidRequest for an unsupported type."""
        kind = _resolved(kind)
        if _is_plain(kind):
            return dict(PLAIN_TYPES[kind])
        if _is_text(kind):
            return text_schema(kind)
        origin = typing.get_origin(kind)
        if origin is not None:
            return self._generic(kind, origin, path)
        if _is_record(kind):
            return self._record(kind)
        if isinstance(kind, type) and issubclass(kind, enum.Enum):
            return {"enum": _check_literals((member.value for member in kind), kind, path)}
        if is_pydantic(kind):
            return self._model(kind)
        _refuse(kind, path)

    def _generic(self, kind: Any, origin: Any, path: str) -> dict[str, Any]:
        if origin is list:
            return {"type": "array", "items": self.build(typing.get_args(kind)[0], f"{path}[]")}
        if origin in SETS:
            return set_schema(self.build(_hashable_item(kind, path), f"{path}[]"))
        if origin is tuple and _is_endless(kind):
            return {"type": "array", "items": self.build(typing.get_args(kind)[0], f"{path}[]")}
        if origin is tuple and typing.get_args(kind):
            return tuple_schema([self.build(part, f"{path}[{i}]") for i, part in enumerate(typing.get_args(kind))])
        if origin is dict:
            return {"type": "object", "additionalProperties": self.build(_dict_value_type(kind, path), f"{path}[*]")}
        if origin is Literal:
            return {"enum": _check_literals(typing.get_args(kind), kind, path)}
        if _is_union(origin):
            return any_of([self.build(member, path) for member in typing.get_args(kind)])
        if origin is typing.Annotated:
            inner, text = _description(kind, path)
            return {**self.build(inner, path), "description": text}
        _refuse(kind, path)

    def _record(self, kind: type[Any]) -> dict[str, Any]:
        if kind not in self._names:
            name = self._names[kind] = self._free_name(kind.__name__)
            self.definitions[name] = {}  # taken before the fields are built: they may refer back
            fields = fields_of(kind, kind.__name__)
            properties = {field.name: self.build(field.type, f"{kind.__name__}.{field.name}") for field in fields}
            self.definitions[name] = object_schema(properties, [field.name for field in fields if field.required])
        return {"$ref": f"#/$defs/{self._names[kind]}"}

    def _model(self, kind: type[Any]) -> dict[str, Any]:
        """Return a reference to a pydantic model, whose schema brings the definitions of the models in it."""
        if kind not in self._names:
            root, parts = pydantic_parts(kind)
            names = {name: name for name in parts}
            known = {name: self.definitions[name] for name in parts if name in self.definitions}
            if known != {
                name: closed(renamed(parts[name], names)) for name in known
            }:  # of other classes with these names
                for name in parts:
                    names[name] = self._free_name(name, frozenset(parts) - {name})
            self.definitions |= {names[name]: closed(renamed(part, names)) for name, part in parts.items()}
            self._names[kind] = names[root]
        return {"$ref": REFERENCE + self._names[kind]}

    def _free_name(self, name: str, others: frozenset[str] = frozenset()) -> str:
        taken, number = name, 2
        while taken in self.definitions or taken in others:
            taken, number = f"{name}{number}", number + 1
        return taken


def schema_of(kind: Any) -> dict[str, Any]:
    """Return the JSON Schema of a type. Raises InvalidRequest, which names the field, for a type that JSON cannot hold."""
    if is_pydantic(kind):
        return closed(pydantic_schema(kind))
    builder = SchemaBuilder()
    try:
        root = builder.build(kind, type_name(kind))
    except RecursionError:
        raise InvalidRequest(
            f"{type_name(kind)}: an alias that contains itself is not supported: use a class"
        ) from None
    return with_definitions(root, builder.definitions)


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """Forbid unknown keys in every object of a pydantic schema that says nothing about them.

    Pydantic would drop such keys after they were generated; a model that is set to keep them says so in its schema. What is no
    schema stays as it is: whoever compiles it refuses it.
    """
    if not isinstance(schema, dict):
        return schema
    result = {key: _closed_part(key, value) for key, value in schema.items()}
    if "properties" in result and "additionalProperties" not in result:
        result["additionalProperties"] = False
    return result


def _closed_part(key: str, value: Any) -> Any:
    if key in ("properties", "$defs", "definitions", "patternProperties") and isinstance(value, dict):
        return {name: closed(part) for name, part in value.items()}
    if key in ("items", "additionalProperties") and isinstance(value, dict):
        return closed(value)
    if key in ("anyOf", "oneOf", "prefixItems") and isinstance(value, list):
        return [closed(part) for part in value]
    return value


def structure(kind: Any, value: Any, path: str) -> Any:
    """Return a JSON value as an instance of ``kind``.

    Strict: no conversion between strings and numbers; a whole float is an int, and an int is a float. Raises
    InvalidRequest, which names the place by ``path``, for a value that does not fit.
    """
    return _structure(kind, value, path, 0)


def _structure(kind: Any, value: Any, path: str, depth: int) -> Any:
    kind = _resolved(kind)
    if depth > MAX_DEPTH:
        raise InvalidRequest(f"{path}: nested too deeply")
    if _is_plain(kind):
        return _plain(kind, value, path)
    if _is_text(kind):
        text = _plain(str, value, path)
        return guarded(lambda: TEXT_TYPES[kind][1](text), path)
    origin = typing.get_origin(kind)
    if origin is not None:
        return _structure_generic(kind, origin, value, path, depth)
    if _is_record(kind):
        return _structure_record(kind, value, path, depth)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _member(kind, value, path)
    if is_pydantic(kind):
        return guarded(lambda: validated(kind, value), path)
    _refuse(kind, path)


def _structure_generic(kind: Any, origin: Any, value: Any, path: str, depth: int) -> Any:
    if origin is list or origin in SETS:
        item = typing.get_args(kind)[0]
        items = [_structure(item, v, f"{path}[{i}]", depth + 1) for i, v in enumerate(_plain(list, value, path))]
        return items if origin is list else guarded(lambda: origin(items), path)
    if origin is tuple and typing.get_args(kind):
        return _structure_tuple(kind, value, path, depth)
    if origin is dict:
        item = _dict_value_type(kind, path)
        return {k: _structure(item, v, f"{path}[{k!r}]", depth + 1) for k, v in _plain(dict, value, path).items()}
    if origin is Literal:
        for option in typing.get_args(kind):
            if type(option) is type(value) and option == value:
                return option
        raise InvalidRequest(f"{path}: must be one of {list(typing.get_args(kind))}, not {_shown(value)}")
    if _is_union(origin):
        return _first_that_fits(kind, value, path, depth)
    if origin is typing.Annotated:
        return _structure(typing.get_args(kind)[0], value, path, depth)
    _refuse(kind, path)


def _structure_tuple(kind: Any, value: Any, path: str, depth: int) -> tuple[Any, ...]:
    given, members = _plain(list, value, path), typing.get_args(kind)
    if _is_endless(kind):
        members = members[:1] * len(given)
    if len(given) != len(members):
        raise InvalidRequest(f"{path}: must be an array of {len(members)}, not of {len(given)}")
    return tuple(
        _structure(m, v, f"{path}[{i}]", depth + 1) for i, (m, v) in enumerate(zip(members, given, strict=True))
    )


def part_type(kind: Any, key: str | int, path: str) -> Any:
    """Return the type of the part ``key`` of a ``kind`` that is not finished; Any where that is not known yet.

    Unions and pydantic models are told apart by the whole value, so nothing is said about their parts.
    """
    kind = _resolved(kind)
    while typing.get_origin(kind) is typing.Annotated:
        kind = _resolved(typing.get_args(kind)[0])
    if isinstance(key, int):
        return _item_type(kind, key)
    if typing.get_origin(kind) is dict:
        return typing.get_args(kind)[1]
    if _is_record(kind):
        return next((field.type for field in fields_of(kind, path) if field.name == key), Any)
    return Any


def _item_type(kind: Any, index: int) -> Any:
    origin, members = typing.get_origin(kind), typing.get_args(kind)
    if origin in (list, *SETS) or (origin is tuple and _is_endless(kind)):
        return members[0]
    return members[index] if origin is tuple and index < len(members) else Any


def _first_that_fits(kind: Any, value: Any, path: str, depth: int) -> Any:
    refusals = []
    for member in typing.get_args(kind):
        try:
            return _structure(member, value, path, depth + 1)
        except InvalidRequest as error:
            refusals.append(error.message)
    if len(refusals) == 2 and type(None) in typing.get_args(kind):
        raise InvalidRequest(next(text for text in refusals if "must be null" not in text))
    raise InvalidRequest(f"{path}: {_shown(value)} fits none of {type_name(kind)}")


def _structure_record(kind: Any, value: Any, path: str, depth: int) -> Any:
    given = _plain(dict, value, path)
    fields = fields_of(kind, path)
    unknown = given.keys() - {field.name for field in fields}
    missing = [field.name for field in fields if field.required and field.name not in given]
    if unknown or missing:
        problem = f"unknown key {min(unknown)!r}" if unknown else f"missing key {missing[0]!r}"
        raise InvalidRequest(f"{path}: {problem} for {type_name(kind)}")
    values = {
        field.name: _structure(field.type, given[field.name], f"{path}.{field.name}", depth + 1)
        for field in fields
        if field.name in given
    }
    return guarded(lambda: kind(**values), path)


def guarded(make: Callable[[], Any], path: str) -> Any:
    """Call a class that may check its own fields; its complaint becomes an InvalidRequest that names the place."""
    try:
        return make()
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"{path}: {error}") from error


def _member(kind: type[enum.Enum], value: Any, path: str) -> Any:
    for member in kind:
        if type(member.value) is type(value) and member.value == value:
            return member
    raise InvalidRequest(f"{path}: must be one of {[member.value for member in kind]}, not {_shown(value)}")


def _plain(kind: Any, value: Any, path: str) -> Any:
    if kind is Any or kind is object:
        return value
    if kind is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if kind is float and type(value) is int:
        return guarded_float(value, path)
    wanted = type(None) if kind is None else kind
    if type(value) is not wanted:
        name = PLAIN_TYPES[kind]["type"]
        article = "" if name == "null" else "an " if name[0] in "aio" else "a "
        raise InvalidRequest(f"{path}: must be {article}{name}, not {_shown(value)}")
    return value


def guarded_float(value: int, path: str) -> float:
    """Return an int as a float. Raises InvalidRequest for one that no float can hold."""
    try:
        return float(value)
    except OverflowError:
        raise InvalidRequest(f"{path}: {_shown(value)} is too large") from None


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
