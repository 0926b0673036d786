"""Whole numbers that the library would round, or that end it: it reads numbers as 64-bit floats."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from inferd_grammar.errors import GrammarError
from inferd_grammar.rules.numbers import numbers_in
from inferd_grammar.schema import iter_schemas

_VALUES = ("const", "enum")
_BOUNDS = ("exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum")
_MOST_TENS = 308  # in the library's table of powers
_LARGEST = 2**63 - 1  # from here on the library cuts bounds to 64 bits, which is narrower


def require_exact_numbers(root: Any) -> None:
    """Raises GrammarError with the keyword's pointer for a value or a bound that no float equals."""
    for pointer, schema in iter_schemas(root):
        for key in (*_VALUES, *_BOUNDS) if isinstance(schema, dict) else ():
            for number in numbers_in(schema.get(key)):
                if _is_rounded(number) and (key in _VALUES or abs(number) < _LARGEST):
                    raise GrammarError(
                        f"{number} is beyond 2**53, where not every whole number is exact", f"{pointer}/{key}"
                    )


def require_readable_numbers(root: Any) -> None:
    """Raises GrammarError with the keyword's pointer for a number that the library does not read as what it is.

    Of a value of -2^63 or below beside `type: integer` it takes the absolute value, and ends the process. A fraction of 16
    or 17 digits it may read as the next one.
    """
    for pointer, schema in iter_schemas(root):
        for key in (*_VALUES, *_BOUNDS) if isinstance(schema, dict) else ():
            for number in numbers_in(schema.get(key)):
                if key in _VALUES and number <= -(2**63):
                    raise GrammarError("numbers of -2**63 and below are not supported as values", f"{pointer}/{key}")
                far = key in _BOUNDS and abs(number) > _LARGEST
                if isinstance(number, float) and not far and _as_read(number) != number:
                    raise GrammarError(
                        f"{number} has more digits than the library reads exactly; 15 are always right",
                        f"{pointer}/{key}",
                    )


def _as_read(number: float) -> float:
    """Return what the library reads: the digits as a float, times or divided by a power of ten, each rounded."""
    sign, digits, exponent = Decimal(repr(number)).as_tuple()
    value, places = float(int("".join(map(str, digits)))), abs(int(exponent))
    power, rest = float(f"1e{min(places, _MOST_TENS)}"), float(f"1e{max(places - _MOST_TENS, 0)}")
    value = value / power / rest if int(exponent) < 0 else value * power * rest
    return -value if sign else value


def _is_rounded(number: int | float) -> bool:
    return isinstance(number, int) and (abs(number) > 2**1000 or int(float(number)) != number)
