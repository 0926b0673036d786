"""Complements of bounds: each bound has one on the other side.

`multipleOf` of numbers that a schema leaves open has none that a grammar can say, nor has `pattern` here.
"""

from __future__ import annotations

from inferd_grammar.rewrites.base import Schema, View
from inferd_grammar.rewrites.kinds import ARRAY, NUMBER, OBJECT, STRING, Kinds, number_type

_NUMBERS = {
    "exclusiveMaximum": "minimum",
    "exclusiveMinimum": "maximum",
    "maximum": "exclusiveMinimum",
    "minimum": "exclusiveMaximum",
}
_COUNTS = {
    "maxItems": ("array", "minItems"),
    "maxLength": ("string", "minLength"),
    "maxProperties": ("object", "minProperties"),
    "minItems": ("array", "maxItems"),
    "minLength": ("string", "maxLength"),
    "minProperties": ("object", "maxProperties"),
}
FAMILIES: dict[str, Kinds] = {
    **dict.fromkeys(_NUMBERS, NUMBER),
    **{key: {"array": ARRAY, "string": STRING, "object": OBJECT}[kind] for key, (kind, _) in _COUNTS.items()},
}


def negative(key: str, view: View, kinds: Kinds) -> list[Schema]:
    """Return schemas of numbers, or counts, on the other side of the bound."""
    value = view.words[key]
    if key in _NUMBERS:
        return [{"type": number_type(kinds), _NUMBERS[key]: value}]
    kind_name, opposite = _COUNTS[key]
    limit = int(value) + (1 if opposite.startswith("min") else -1)
    return [{"type": kind_name, opposite: limit}] if limit >= 0 else []
