"""Which kinds of JSON value a schema lets through. Numbers are two kinds, so that `integer` has a complement."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from inferd_grammar.rewrites.base import Schema

Kinds = frozenset[str]

STRING, ARRAY, OBJECT = Kinds({"string"}), Kinds({"array"}), Kinds({"object"})
NUMBER = Kinds({"integer", "fraction"})
ALL = STRING | ARRAY | OBJECT | NUMBER | {"null", "boolean"}
_ORDER = ("null", "boolean", "integer", "fraction", "string", "array", "object")


def of_types(types: str | Iterable[str]) -> Kinds:
    """Return the kinds that the value of a `type` keyword names."""
    names = [types] if isinstance(types, str) else types
    return Kinds().union(*(NUMBER if name == "number" else {name} for name in names))


def of_value(value: Any) -> str:
    """Return the kind of one JSON value; 1.0 is an integer."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else "boolean"
    if isinstance(value, (int, float)):
        return "integer" if value == int(value) else "fraction"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


def typed(kinds: Kinds, within: Kinds = ALL) -> Schema:
    """Return the schema that lets exactly `kinds` through of the kinds `within`.

    Fractions alone have no `type`; between multiples of one there are only such, see `multiples.py`. Callers that may
    have them, with integers in `within`, add those gaps; here they are left out.
    """
    if kinds >= within:
        return True
    names = [name for name in _ORDER if name in kinds and name not in NUMBER]
    if kinds & NUMBER == within & NUMBER and kinds & NUMBER:
        names.append(number_type(kinds))
    elif "integer" in kinds:
        names.append("integer")
    return {"type": names[0] if len(names) == 1 else names} if names else False


def number_type(within: Kinds) -> str:
    """Return `integer` where fractions cannot be, else `number`."""
    return "number" if "fraction" in within else "integer"


def canonical(value: Any) -> str:
    """Return a text that is equal for values that JSON Schema holds equal: key order and `1` or `1.0` make no difference."""
    return json.dumps(_whole(value), sort_keys=True)


def _whole(value: Any) -> Any:
    if isinstance(value, float) and value == int(value):
        return int(value)
    if isinstance(value, list):
        return [_whole(item) for item in value]
    if isinstance(value, dict):
        return {key: _whole(item) for key, item in value.items()}
    return value
