"""Whole numbers that the library would round: it reads numbers as 64-bit floats."""

from __future__ import annotations

from typing import Any

from inferd_grammar.errors import GrammarError
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


def _is_rounded(number: int | float) -> bool:
    return isinstance(number, int) and (abs(number) > 2**1000 or int(float(number)) != number)
