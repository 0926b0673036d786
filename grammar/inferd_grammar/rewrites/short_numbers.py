"""Numbers that the backend refuses because a bound, or a multiple, has more decimals than they have.

Up to 6.42 it refuses 6.4, between 5.9 and 5.95 it refuses 5.9, and among the multiples of 0.25 it refuses 0.5: it compares
digits, and does not take an end of the text for zeros. So what each bound is when it is cut, at any decimal, is listed beside
the range, and the multiples with fewer decimals are said once more with a step of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import ROUND_DOWN, Decimal
from fractions import Fraction
from math import lcm
from typing import Any

from inferd_grammar.rewrites.base import Schema
from inferd_grammar.rewrites.open_bounds import objects_of

_BOUNDS = ("exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum")
_MOST_DECIMALS = 17  # of a number that is written: see the rule about digits


def needs_short_numbers(schema: Mapping[str, Any]) -> bool:
    """Return True if a schema leaves numbers open, and says about them something with a fraction."""
    if schema.get("type") == "integer" or {"const", "enum"} & schema.keys():
        return False
    return any(_decimals(schema[key]) for key in (*_BOUNDS, "multipleOf") if key in schema)


def add_short_numbers(schema: Schema) -> None:
    """Add the numbers to a translated schema, in place."""
    for item in list(objects_of(schema)):
        if needs_short_numbers(item):
            numbers = {key: item.pop(key) for key in (*_BOUNDS, "multipleOf") if key in item}
            steps = [{**numbers, "multipleOf": step} for step in _steps(numbers.get("multipleOf", 1))]
            short = sorted(set(_short(numbers)))
            options = [numbers, *steps, *([{"enum": short}] if short else [])]
            item["allOf"] = [*item.get("allOf", ()), {"anyOf": options}]


def _short(numbers: Mapping[str, Any]) -> Iterator[float]:
    """Yield the bounds with fractions, cut at each of their decimals, that are within the bounds."""
    for bound in [_exact(numbers[key]) for key in _BOUNDS if key in numbers]:
        for places in range(_decimals(bound) + 1) if _decimals(bound) else ():
            cut = bound.quantize(Decimal(1).scaleb(-places), ROUND_DOWN)
            if _holds(numbers, cut):
                yield float(cut)


def _holds(numbers: Mapping[str, Any], value: Decimal) -> bool:
    bounds = {key: _exact(bound) for key, bound in numbers.items()}
    return (
        bounds.get("minimum", value) <= value <= bounds.get("maximum", value)
        and bounds.get("exclusiveMinimum", value - 1) < value < bounds.get("exclusiveMaximum", value + 1)
        and ("multipleOf" not in bounds or Fraction(value) % Fraction(bounds["multipleOf"]) == 0)
    )


def _steps(step: Any) -> list[float]:
    """Return the steps between those multiples that have fewer decimals than the step, but some."""
    size = _decimals(step)
    digits = int(_exact(step).scaleb(size))
    coarser = [10 ** (size - places) for places in range(1, size) if size <= _MOST_DECIMALS]
    return [float(Decimal(lcm(digits, unit)).scaleb(-size)) for unit in coarser]


def _decimals(number: Any) -> int:
    exponent = _exact(number).normalize().as_tuple().exponent
    assert isinstance(exponent, int)  # finite: JSON text has no other numbers
    return max(0, -exponent)


def _exact(number: Any) -> Decimal:
    return Decimal(str(number))
