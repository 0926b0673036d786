"""Open bounds that the backend gets wrong: between 1 (exclusive) and 1.5 it lets 1 through.

It does so wherever a whole exclusive bound and the other bound share their whole part, also where the two meet from
different branches. In a document with fractions each whole exclusive bound of a number moves by a millionth inwards;
narrower by that much. Bounds of integers stay: the backend rounds them first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from inferd_grammar.rewrites.base import Schema

_STEP = 1e-6
_LARGE = 2**30  # from here on a float has no room for the step
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


def close(schema: Schema) -> None:
    """Move the bounds of a translated schema, in place."""
    stack: list[Any] = [schema]
    while stack:
        item = stack.pop()
        if not isinstance(item, dict):
            continue
        if item.get("type") != "integer":
            _move(item, "exclusiveMinimum", _STEP)
            _move(item, "exclusiveMaximum", -_STEP)
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
