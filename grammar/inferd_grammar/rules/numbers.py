"""Numbers end: at most so many digits, where the grammar would let them go on for ever.

A limit only holds where the number may end. Bounds that need more digits (`minimum: 1e30`) get them, and so does a decimal
point that waits for one.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inferd_grammar.schema import iter_schemas
from inferd_grammar.tokens import TokenTable, bit_mask

DIGITS = 17
"""Digits of whole part and fraction together: enough to tell every two 64-bit floats apart."""
EXPONENT_DIGITS = 3
_MANTISSA = b"0123456789."
_EXPONENT = b"0123456789+-"
_TERMINATORS = (b",", b"]", b"}")


class NumberPlace(NamedTuple):
    """Where a text stands: in a string (behind a backslash or not), in a number with so many digits, or elsewhere."""

    quoted: bool = False
    escaped: bool = False
    digits: int = 0
    exponent: int = -1

    @property
    def in_number(self) -> bool:
        """True behind a digit, a decimal point or the mark of an exponent."""
        return self.digits > 0


@lru_cache(maxsize=1 << 18)
def behind(place: NumberPlace, text: bytes) -> NumberPlace:
    """Return the place behind further bytes."""
    for byte in text:
        place = _behind(place, byte)
    return place


def _behind(place: NumberPlace, byte: int) -> NumberPlace:
    if place.quoted:
        if place.escaped:
            return NumberPlace(quoted=True)
        return NumberPlace() if byte == ord('"') else NumberPlace(quoted=True, escaped=byte == ord("\\"))
    if byte in b"0123456789":
        if place.exponent >= 0:
            return place._replace(exponent=place.exponent + 1)
        return place._replace(digits=place.digits + 1)
    if place.in_number and byte in b"eE":
        return place._replace(exponent=0)
    if place.in_number and byte in b".+-":
        return place
    return NumberPlace(quoted=byte == ord('"'))


class DigitMasks:
    """Which tokens go on with a number by how many digits, for one vocabulary. Thread-safe once made."""

    def __init__(self, table: TokenTable) -> None:
        self.ends: NDArray[np.int32] = bit_mask(
            [i for i, token in enumerate(table.tokens) if token.startswith(_TERMINATORS)], table.vocab_size
        )
        self._mantissa = _by_length(table, _MANTISSA)
        self._exponent = _by_length(table, _EXPONENT)

    def within(self, place: NumberPlace, digits: int) -> NDArray[np.int32] | None:
        """Return the mask of what keeps a number within `digits`; None where every token does."""
        if place.exponent >= 0:
            return _at_most(self._exponent, EXPONENT_DIGITS - place.exponent)
        return _at_most(self._mantissa, digits - place.digits)


def _by_length(table: TokenTable, alphabet: bytes) -> Sequence[NDArray[np.int32]]:
    """Return masks by n: the tokens that begin with at most n digits, those that end in a point counted one more."""
    needs = [_digits_at_start(token, alphabet) for token in table.tokens]
    return [bit_mask([i for i, need in enumerate(needs) if need <= n], table.vocab_size) for n in range(max(needs))]


def _digits_at_start(token: bytes, alphabet: bytes) -> int:
    run = token[: next((n for n, byte in enumerate(token) if byte not in alphabet), len(token))]
    return sum(byte not in b".+-" for byte in run) + run.endswith(b".")


def _at_most(masks: Sequence[NDArray[np.int32]], count: int) -> NDArray[np.int32] | None:
    return masks[max(count, 0)] if count < len(masks) else None


def digits_for(root: Any) -> int:
    """Return the digits that numbers of a schema get: more where its own numbers have more."""
    most = DIGITS
    for _, schema in iter_schemas(root):
        if isinstance(schema, dict):
            words = [schema[key] for key in _WITH_NUMBERS if key in schema]
            most = max([most, *(_digits(number) for word in words for number in numbers_in(word))])
    return most


_WITH_NUMBERS = ("const", "enum", "exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "multipleOf")


def numbers_in(value: Any) -> list[int | float]:
    """Return the numbers inside a JSON value."""
    found, stack = list[int | float](), [value]
    while stack:
        item = stack.pop()
        if isinstance(item, (int, float)) and not isinstance(item, bool):
            found.append(item)
        elif isinstance(item, (list, dict)):
            stack.extend(item.values() if isinstance(item, dict) else item)
    return found


def _digits(number: int | float) -> int:
    """Return how many digits a number has when it is written without an exponent, up to what a grammar would do with it."""
    _, digits, exponent = Decimal(str(number)).as_tuple()
    assert isinstance(exponent, int)  # JSON has no infinity
    return min(max(len(digits), len(digits) + exponent, 1 - exponent), 400) if abs(exponent) < 60 else len(digits)
