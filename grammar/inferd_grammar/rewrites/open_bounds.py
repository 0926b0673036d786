"""Bounds that the backend gets wrong: open ones, and those beyond 64-bit integers.

A number is read as a float: 9.9999999999999999 is below 10, and read as 10. So an open bound of numbers becomes a closed one, a
billionth of it inwards; narrower by that much. Bounds of integers stay below 2^53, and move to the next float from there on: the
backend adds 1 to a float.

There are floats enough beside zero. But between 0 (exclusive) and 0.5 the backend lets 0 through, also where the two meet from
different branches: in a document with fractions it moves by a millionth.

A closed bound of 16 or 17 digits that the library reads as a float beyond it moves inwards, to one that it does not.

A range that ends where 64-bit integers do, or beyond, is refused (`minimum: -2^63`, or the least float). Such a bound moves
inwards to the next float; narrower by what is beyond.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from math import copysign, floor, inf, nextafter
from typing import Any

from inferd_grammar.rewrites.base import Schema

_STEP = 1e-6
_PLACES = 9  # so many behind the first digit of a bound is what moves
_MOST_CLOSED = 64  # schemas of a document: a complement of multiples has twice as many
_WHOLE = 2**53  # from here on floats are whole
_MOST_TENS = 308  # in the library's table of powers
_LARGEST = 2**63 - 1024  # the last float below the end of the range
_LOWS, _HIGHS = ("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")
_MANY = ("allOf", "anyOf", "prefixItems")
_NAMED = ("$defs", "patternProperties", "properties")
_ONE = ("additionalProperties", "items")


def is_open(schema: dict[str, Any], fractions: bool) -> bool:
    """Return True if a schema of numbers has a bound that `close` moves."""
    bounds = [schema[key] for key in ("exclusiveMinimum", "exclusiveMaximum") if key in schema]
    if schema.get("type") == "integer":
        return any(_WHOLE <= abs(bound) < 2**63 for bound in bounds)
    return any(bound or fractions for bound in bounds)


def has_fractions(value: Any) -> bool:
    """Return True if some number in a JSON value is not whole."""
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, float) and item != floor(item):
            return True
        if isinstance(item, (dict, list)):
            stack.extend(item.values() if isinstance(item, dict) else item)
    return False


def is_far(schema: dict[str, Any]) -> bool:
    """Return True if a bound is beyond 64-bit integers, or read as one beyond it: see `clip`."""
    lows = [schema[key] for key in _LOWS if key in schema]
    highs = [schema[key] for key in _HIGHS if key in schema]
    return any(low < -_LARGEST or as_read(low) < low for low in lows) or any(
        high > _LARGEST or as_read(high) > high for high in highs
    )


def as_read(number: int | float) -> int | float:
    """Return what the library reads: of a fraction the digits as a float, times or divided by a power of ten, each rounded."""
    if not isinstance(number, float):
        return number
    sign, digits, exponent = Decimal(repr(number)).as_tuple()
    value, places = float(int("".join(map(str, digits)))), abs(int(exponent))
    power, rest = float(f"1e{min(places, _MOST_TENS)}"), float(f"1e{max(places - _MOST_TENS, 0)}")
    value = value / power / rest if int(exponent) < 0 else value * power * rest
    return -value if sign else value


def clip(schema: Schema) -> None:
    """Move the far bounds of a translated schema, in place. The upper one of integers may be any, except one that is rounded."""
    for item in objects_of(schema):
        for key in _LOWS:
            if key in item:
                item[key] = _readable(max(item[key], -_LARGEST), inf)
        for key in _HIGHS:
            if key in item and (item.get("type") != "integer" or (key == "exclusiveMaximum" and item[key] < 2**63)):
                item[key] = min(item[key], _LARGEST)
            if key in item:
                item[key] = _readable(item[key], -inf)


def _readable(bound: int | float, toward: float) -> int | float:
    """Return the bound, or the next float inwards that the library reads as none beyond it."""
    moved = bound
    while (as_read(moved) - bound) * toward < 0:
        moved = nextafter(moved, toward)
    return moved


def close(schema: Schema, fractions: bool) -> None:
    """Close the open bounds of a translated schema, in place: if it has `fractions`, or they are few."""
    found = [item for item in objects_of(schema) if is_open(item, fractions)]
    for item in found if fractions or len(found) <= _MOST_CLOSED else ():
        _close(item, "exclusiveMinimum", "minimum", max, inf)
        _close(item, "exclusiveMaximum", "maximum", min, -inf)


def is_left_open(schema: Schema) -> bool:
    """Return True if a translated schema has open bounds of numbers, to which a float may be rounded."""
    return any(is_open(item, False) for item in objects_of(schema))


def _close(item: dict[str, Any], key: str, closed: str, tighter: Callable[..., Any], toward: float) -> None:
    if key in item:
        moved = _moved(item.pop(key), toward)
        item[closed] = tighter(moved, item.get(closed, moved))


def _moved(bound: int | float, toward: float) -> int | float:
    if bound == 0:
        return copysign(_STEP, toward)
    if abs(bound) >= _WHOLE:
        moved = nextafter(bound, toward)
        return int(moved) if abs(moved) < 2**63 else moved  # the library misreads some floats by a bit
    exact = Decimal(str(bound))
    inwards = exact + Decimal(1).scaleb(min(exact.adjusted() - _PLACES, 0)).copy_sign(Decimal(toward))
    return int(inwards) if inwards == int(inwards) else float(inwards)


def objects_of(schema: Schema) -> Iterator[dict[str, Any]]:
    """Yield the schema objects of a translated schema."""
    stack: list[Any] = [schema]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            yield item
            stack.extend(_children(item))


def _children(schema: dict[str, Any]) -> Iterator[Any]:
    for key in _MANY:
        yield from schema.get(key, ())
    for key in _NAMED:
        yield from schema.get(key, {}).values()
    for key in _ONE:
        yield schema.get(key)
