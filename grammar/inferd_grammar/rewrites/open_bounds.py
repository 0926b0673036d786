"""Bounds that the backend gets wrong: open ones, and those beyond 64-bit integers.

Between 1 (exclusive) and 1.5 it lets 1 through. It does so wherever a whole exclusive bound and the other bound share their whole
part, also where the two meet from different branches. In a document with fractions each whole exclusive bound of a number moves
by a millionth inwards; narrower by that much. Bounds of integers stay: the backend rounds them first.

A range that ends where 64-bit integers do, or beyond, is refused (`minimum: -2^63`, or the least float). Such a bound moves
inwards to the next float; narrower by what is beyond.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from inferd_grammar.rewrites.base import Schema

_STEP = 1e-6
_LARGEST = 2**63 - 1024  # the last float below the end of the range
_LARGE = 2**30  # from here on a float has no room for the step
_LOWS, _HIGHS = ("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")
_MANY = ("allOf", "anyOf", "prefixItems")
_NAMED = ("$defs", "patternProperties", "properties")
_ONE = ("additionalProperties", "items")


def has_fractions(value: Any) -> bool:
    """Return True if some number in a JSON value is not whole."""
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, float) and item != math.floor(item):
            return True
        if isinstance(item, (dict, list)):
            stack.extend(item.values() if isinstance(item, dict) else item)
    return False


def is_far(schema: dict[str, Any]) -> bool:
    """Return True if a bound leaves open more than 64-bit integers."""
    lows, highs = [schema.get(key) for key in _LOWS], [schema.get(key) for key in _HIGHS]
    return any(low is not None and low < -_LARGEST for low in lows) or any(
        high is not None and high > _LARGEST for high in highs
    )


def clip(schema: Schema) -> None:
    """Move the far bounds of a translated schema, in place. The upper one of integers may be any."""
    for item in objects_of(schema):
        for key in _LOWS:
            if key in item:
                item[key] = max(item[key], -_LARGEST)
        for key in _HIGHS if item.get("type") != "integer" else ():
            if key in item:
                item[key] = min(item[key], _LARGEST)


def close(schema: Schema) -> None:
    """Move the open bounds of a translated schema, in place."""
    for item in objects_of(schema):
        if item.get("type") != "integer":
            _move(item, "exclusiveMinimum", _STEP)
            _move(item, "exclusiveMaximum", -_STEP)


def objects_of(schema: Schema) -> Iterator[dict[str, Any]]:
    """Yield the schema objects of a translated schema."""
    stack: list[Any] = [schema]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            yield item
            stack.extend(_children(item))


def _move(schema: dict[str, Any], key: str, step: float) -> None:
    bound = schema.get(key)
    if bound is not None and bound == int(bound) and abs(bound) < _LARGE:
        schema[key] = round(bound + step, 6)


def _children(schema: dict[str, Any]) -> Iterator[Any]:
    for key in _MANY:
        yield from schema.get(key, ())
    for key in _NAMED:
        yield from schema.get(key, {}).values()
    for key in _ONE:
        yield schema.get(key)
