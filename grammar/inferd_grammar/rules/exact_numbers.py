"""Whole numbers that the library would round, or that end it: it reads numbers as 64-bit floats."""

from __future__ import annotations

from typing import Any

from inferd_grammar.errors import GrammarError
from inferd_grammar.rewrites.open_bounds import as_read
from inferd_grammar.rules.numbers import numbers_in
from inferd_grammar.schema import iter_schemas

_VALUES = ("const", "enum")
_BOUNDS = ("exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum")
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
    """Raises GrammarError with the keyword's pointer for a value that the library does not read as what it is.

    Of one of -2^63 or below beside `type: integer` it takes the absolute value, and ends the process. A fraction of 16 or 17
    digits it may read as the next one.
    """
    for pointer, schema in iter_schemas(root):
        for key in _VALUES if isinstance(schema, dict) else ():
            for number in numbers_in(schema.get(key)):
                if number <= -(2**63):
                    raise GrammarError("numbers of -2**63 and below are not supported as values", f"{pointer}/{key}")
                if isinstance(number, float) and as_read(number) != number:
                    raise GrammarError(
                        f"{number} has more digits than the library reads exactly; 15 are always right",
                        f"{pointer}/{key}",
                    )


def _is_rounded(number: int | float) -> bool:
    return isinstance(number, int) and (abs(number) > 2**1000 or int(float(number)) != number)
