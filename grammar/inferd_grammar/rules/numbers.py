"""Numbers end: at most so many digits, where the grammar would let them go on for ever, and no more than a float holds.

A limit only holds where the number may end. Bounds that need more digits (`minimum: 1e30`) get them, and so does a decimal
point that waits for one. An exponent stays so small that the number is below 1e308: beyond the floats of 64 bits most readers
have infinity, which is no JSON.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inferd_grammar.schema import iter_schemas
from inferd_grammar.tokens import TokenTable, bit_mask

DIGITS = 17
"""Digits of whole part and fraction together, from the first that is not zero: enough to tell every two 64-bit floats apart."""
DISTINCT_DIGITS = 15
"""So many at most that a 64-bit float tells every two of them apart."""
EXPONENT_DIGITS = 3
_FREE_ZEROS = 7
"""Zeros before the others: smaller numbers are written with an exponent."""
_LONGEST_KEPT = 64
"""Bytes of a text behind which a place is kept: those of most tokens, and not of what a grammar forces."""
_LARGEST, _LARGEST_POWER = b"17976931348623157", 308
"""The largest float's digits, of which one stands before the decimal point, and its power of ten."""
_QUOTE = re.compile(rb'["\\]')
_MANTISSA = b"0123456789."
_EXPONENT = b"0123456789+-"


class NumberPlace(NamedTuple):
    """Where a text stands: in a string (behind a backslash or not), in a number with so many digits, or elsewhere.

    Fields:
        zeros: the first ones, which are not counted among `digits` where they are few.
        whole: the digits before the decimal point; `pointed` behind it.
        above: the digits so far beside the first ones of the largest float: 1 above them, 0 equal, -1 below.
        exponent: the digits of the exponent, -1 before it; `power` is what they say, without the sign.
    """

    quoted: bool = False
    escaped: bool = False
    digits: int = 0
    zeros: int = 0
    whole: int = 0
    pointed: bool = False
    above: int = 0
    exponent: int = -1
    power: int = 0
    shrinking: bool = False

    @property
    def in_number(self) -> bool:
        """True behind a digit, a decimal point or the mark of an exponent."""
        return self.digits + self.zeros > 0


_IN_STRING = NumberPlace(quoted=True)


def behind(place: NumberPlace, text: bytes) -> NumberPlace:
    """Return the place behind further bytes."""
    return _behind_token(place, text) if len(text) <= _LONGEST_KEPT else _behind_all(place, text)


def _behind_all(place: NumberPlace, text: bytes) -> NumberPlace:
    at = 0
    while at < len(text):
        if place == _IN_STRING:
            quote = _QUOTE.search(text, at)
            if quote is None:
                break
            at = quote.start()
        place, at = _behind(place, text[at]), at + 1
    return place


_behind_token = lru_cache(maxsize=1 << 18)(_behind_all)


def _behind(place: NumberPlace, byte: int) -> NumberPlace:
    if place.quoted:
        if place.escaped:
            return NumberPlace(quoted=True)
        return NumberPlace() if byte == ord('"') else NumberPlace(quoted=True, escaped=byte == ord("\\"))
    if byte in b"0123456789":
        if place.exponent >= 0:
            return place._replace(exponent=place.exponent + 1, power=min(place.power * 10 + byte - 48, 9999))
        place = place._replace(whole=place.whole + (not place.pointed))
        if byte == 48 and not place.digits and place.zeros < _FREE_ZEROS:
            return place._replace(zeros=place.zeros + 1)
        above = place.above or _compared(byte, _LARGEST[place.digits] if place.digits < len(_LARGEST) else 48)
        return place._replace(digits=place.digits + 1, above=above)
    if place.in_number and byte in b"eE":
        return place._replace(exponent=0)
    if place.in_number and byte in b".+-":
        return place._replace(pointed=place.pointed or byte == 46, shrinking=byte == 45)
    return NumberPlace(quoted=byte == ord('"'))


def _compared(left: int, right: int) -> int:
    return (left > right) - (left < right)


class DigitMasks:
    """Which tokens go on with a number by how many digits, for one vocabulary. Thread-safe once made."""

    def __init__(self, table: TokenTable) -> None:
        self._vocab_size = table.vocab_size
        self._mantissa = _by_length(table, _MANTISSA)
        self._exponent = _by_length(table, _EXPONENT)
        self._ends = [_not_begun_by(table, _MANTISSA), _not_begun_by(table, _EXPONENT)]
        self._powers = [(i, token) for i, token in enumerate(table.tokens) if token[:1] and token[0] in _EXPONENT]
        self._too_large: dict[tuple[NumberPlace, int], NDArray[np.int32]] = {}

    def ends(self, place: NumberPlace) -> NDArray[np.int32]:
        """Return the mask of the tokens that do not go on with these digits: a text may have an `e` behind a number, too."""
        return self._ends[place.exponent >= 0]

    def within(self, place: NumberPlace, digits: int) -> NDArray[np.int32] | None:
        """Return the mask of what keeps a number within `digits`; None where every token does."""
        if place.exponent >= 0:
            return _at_most(self._exponent, EXPONENT_DIGITS - place.exponent)
        return _at_most(self._mantissa, digits - place.digits)

    def too_large(self, place: NumberPlace) -> NDArray[np.int32]:
        """Return the mask of the tokens behind which an exponent, not a negative one, is more than a float holds."""
        most = _most_power(place)
        key = NumberPlace(digits=1, exponent=place.exponent, power=place.power), most
        mask = self._too_large.get(key)
        if mask is None:
            ids = [i for i, token in self._powers if _is_above(behind(key[0], _run(token, _EXPONENT)), most)]
            mask = self._too_large[key] = bit_mask(ids, self._vocab_size)
        return mask


def is_too_large(place: NumberPlace, text: bytes) -> bool:
    """Return True if a text goes on with an exponent, not a negative one, to more than a float holds."""
    return place.exponent >= 0 and _is_above(behind(place, _run(text, _EXPONENT)), _most_power(place))


def _most_power(place: NumberPlace) -> int:
    most = _LARGEST_POWER - (place.above > 0)
    if place.whole > 1:
        return most - DIGITS if place.whole <= DIGITS else 0
    return most


def _is_above(place: NumberPlace, most: int) -> bool:
    return not place.shrinking and place.power > most


def _by_length(table: TokenTable, alphabet: bytes) -> Sequence[NDArray[np.int32]]:
    """Return masks by n: the tokens that begin with at most n digits, those that end in a point counted one more."""
    needs = [_digits_at_start(token, alphabet) for token in table.tokens]
    return [bit_mask([i for i, need in enumerate(needs) if need <= n], table.vocab_size) for n in range(max(needs))]


def _not_begun_by(table: TokenTable, alphabet: bytes) -> NDArray[np.int32]:
    return bit_mask(
        [i for i, token in enumerate(table.tokens) if not token or token[0] not in alphabet], table.vocab_size
    )


def _digits_at_start(token: bytes, alphabet: bytes) -> int:
    run = _run(token, alphabet)
    return sum(byte not in b".+-" for byte in run) + run.endswith(b".")


def _run(token: bytes, alphabet: bytes) -> bytes:
    """Return what a token begins with of an alphabet."""
    return token[: next((n for n, byte in enumerate(token) if byte not in alphabet), len(token))]


def _at_most(masks: Sequence[NDArray[np.int32]], count: int) -> NDArray[np.int32] | None:
    return masks[max(count, 0)] if count < len(masks) else None


def digits_for(root: Any, most: int = DIGITS) -> int:
    """Return the digits that numbers of a schema get: more than `most` where its own numbers have more."""
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
