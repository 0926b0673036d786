"""Soft ends: strings and arrays for which a schema says no end get one, where that contradicts nothing beside them.

Narrower, and asked for: a model that repeats itself comes to an end. Left alone are strings with a pattern, a format or
listed values, whatever `allOf` holds, and values of no `type`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from inferd_grammar.rewrites.base import Schema

_NAMED = ("$defs", "definitions", "patternProperties", "properties")
_ONE = ("additionalProperties", "items")
_MANY = ("anyOf", "prefixItems")
_SAYS_MORE = frozenset(("$ref", "allOf", "anyOf", "const", "enum", "oneOf"))
_ENDS_STRINGS = frozenset(("format", "maxLength", "pattern"))
_ENDS_ARRAYS = frozenset(("maxItems", "prefixItems"))


class SoftEnds(NamedTuple):
    """The most characters of such a string, and the most items of such an array; 0: as many as the model likes."""

    length: int = 0
    items: int = 0


def soften(schema: Schema, ends: SoftEnds) -> Schema:
    """Return a translated schema with soft ends; the same schema for none."""
    if isinstance(schema, bool) or ends == SoftEnds():
        return schema
    result: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _NAMED and isinstance(value, dict):
            result[key] = {name: soften(part, ends) for name, part in value.items()}
        elif key in _MANY:
            result[key] = [soften(part, ends) for part in value]
        elif key in _ONE and isinstance(value, (dict, bool)):
            result[key] = soften(value, ends)
        else:
            result[key] = value
    return {**result, **_own_ends(schema, ends)}


def _own_ends(schema: dict[str, Any], ends: SoftEnds) -> dict[str, int]:
    types = schema.get("type", ())
    kinds = {types} if isinstance(types, str) else set(types)
    found: dict[str, int] = {}
    if _SAYS_MORE & schema.keys():
        return found
    if "string" in kinds and not _ENDS_STRINGS & schema.keys() and ends.length >= max(1, schema.get("minLength", 0)):
        found["maxLength"] = ends.length
    if "array" in kinds and not _ENDS_ARRAYS & schema.keys() and ends.items >= max(1, schema.get("minItems", 0)):
        found["maxItems"] = ends.items
    return found
