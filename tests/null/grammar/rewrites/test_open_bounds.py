"""Open bounds hold for numbers as they are read, which is as 64-bit floats."""

from __future__ import annotations

import json
from contextlib import suppress
from math import nextafter
from typing import Any

import jsonschema
import pytest
from byte_texts import taken

from inferd_grammar import GrammarCompiler, GrammarError, JsonSchemaGrammar, TaggedGrammar, TagGrammar, TokenTable

BYTES = GrammarCompiler(TokenTable.of_bytes())
NUMBER: dict[str, Any] = {"type": "number"}
ROUNDED = [
    ({"exclusiveMaximum": 1}, "0.99999999999999999"),
    ({"exclusiveMaximum": 10}, "9.9999999999999999"),
    ({"exclusiveMinimum": 1}, "1.0000000000000001"),
    ({"exclusiveMinimum": -1}, "-0.99999999999999999"),
    ({"exclusiveMaximum": 2.5}, "2.4999999999999999"),
    ({"exclusiveMinimum": 0.1}, "0.10000000000000001"),
    ({"exclusiveMinimum": 2**53 - 1, "maximum": 2**54}, "9007199254740991.4"),
    ({"not": {"const": 1}}, "1.0000000000000001"),
    ({"not": {"minimum": 5}}, "4.9999999999999999"),
    ({"not": {"multipleOf": 1}}, "5.9999999999999999"),
    ({"not": {"type": "integer"}}, "31.999999999999999"),
]
KEPT = [
    ({"exclusiveMaximum": 1}, "0.9999"),
    ({"exclusiveMaximum": 10}, "9.9"),
    ({"exclusiveMaximum": 10}, "9.99999"),
    ({"exclusiveMinimum": 1}, "1.0001"),
    ({"exclusiveMinimum": 1}, "2"),
    ({"exclusiveMinimum": 2**31}, str(2**31 + 1)),
    ({"exclusiveMaximum": -(2**31)}, str(-(2**31) - 1)),
    ({"exclusiveMinimum": 0}, "0.00000001"),
    ({"exclusiveMinimum": 1e-7}, "0.0000002"),
    ({"not": {"type": "integer"}}, "5.9"),
]


def _takes(constraint: Any, text: str) -> bool:
    return taken(BYTES.compile(constraint).matcher(), text)


@pytest.mark.parametrize(("words", "text"), ROUNDED, ids=str)
def test_no_number_is_written_that_is_read_as_the_bound_itself(words: dict[str, Any], text: str) -> None:
    assert not jsonschema.Draft202012Validator(NUMBER | words).is_valid(json.loads(text))
    assert not _takes(JsonSchemaGrammar(NUMBER | words), text)


@pytest.mark.parametrize(("words", "text"), KEPT, ids=str)
def test_numbers_within_an_open_bound_stay(words: dict[str, Any], text: str) -> None:
    assert jsonschema.Draft202012Validator(NUMBER | words).is_valid(json.loads(text))
    assert _takes(JsonSchemaGrammar(NUMBER | words), text)


def test_a_bound_of_zero_takes_no_digits_from_other_numbers() -> None:
    """Beside a fraction it was moved, and still held to be open: every number of the document ended behind 15 digits."""
    items = [{"type": "number", "exclusiveMinimum": 0}, {"type": "number"}, {"enum": [0.5]}]
    schema = JsonSchemaGrammar({"type": "array", "prefixItems": items})
    assert _takes(schema, "[0.1,348.56523241317973]")
    assert not _takes(schema, "[0")
    assert not _takes(schema, "[0]")


def test_open_bounds_hold_in_a_call_where_digits_are_not_counted() -> None:
    call = TaggedGrammar((TagGrammar("<", JsonSchemaGrammar(NUMBER | {"exclusiveMaximum": 10}), ">"),))
    assert _takes(call, "<9.9>")
    assert not _takes(call, "<9.99999999999999999999>")


def test_the_largest_64_bit_integer_is_not_below_itself() -> None:
    below = {"type": "integer", "minimum": 1, "exclusiveMaximum": 2**63 - 1}
    assert not _takes(JsonSchemaGrammar(below), str(2**63 - 1))
    assert _takes(JsonSchemaGrammar(below), str(2**62))
    assert _takes(JsonSchemaGrammar(below | {"exclusiveMaximum": 2**63}), str(2**63 - 1))


@pytest.mark.parametrize("bound", [2**53, 2**60, -(2**53), -(2**60)])
@pytest.mark.parametrize("key", ["exclusiveMinimum", "exclusiveMaximum"])
def test_a_bound_of_integers_that_floats_cannot_step_over_is_not_taken_itself(key: str, bound: int) -> None:
    """2^53 was above 2^53, and so an integer that is none of a list had passed with 2^53 in it."""
    closed = {"exclusiveMinimum": "maximum", "exclusiveMaximum": "minimum"}[key]
    ends = {closed: bound + (2**40 if closed == "maximum" else -(2**40))}
    for schema in ({key: bound, **ends}, {"not": {closed: bound}, **ends}, {"not": {"enum": [bound, 5]}, **ends}):
        with suppress(GrammarError):  # some ranges are refused
            assert not _takes(JsonSchemaGrammar(schema | {"type": "integer"}), str(bound))


@pytest.mark.parametrize("value", [-(2**63), [-(2**63)], -1e19])
@pytest.mark.parametrize("mode", ["strict", "best_effort"])
def test_a_value_below_64_bit_integers_is_refused_instead_of_ending_the_process(value: Any, mode: Any) -> None:
    """Beside `type: integer`, and for -2^63 anywhere, the library overflowed its stack."""
    with pytest.raises(GrammarError, match="2\\*\\*63") as refused:
        BYTES.compile(JsonSchemaGrammar({"items": {"type": "integer", "enum": [1, value]}}, mode=mode))
    assert refused.value.pointer == "/items/enum"


@pytest.mark.parametrize("number", [0.9492204766705261, -100.43185984906277, 98810618061561.73, 4.4519717140996717e-07])
@pytest.mark.parametrize("mode", ["strict", "best_effort"])
def test_a_fraction_that_the_library_reads_as_the_next_one_is_refused(number: float, mode: Any) -> None:
    """One in eight of those with 16 or 17 digits: the only text of such a `const` was another number."""
    with pytest.raises(GrammarError, match="reads exactly"):
        BYTES.compile(JsonSchemaGrammar({"const": {"a": number}}, mode=mode))


@pytest.mark.parametrize(
    "bound", [0.3758693438343573, 0.1119785398, 7.587463768003538, 4.999999999999999, 901.8455729803745]
)
def test_a_bound_of_many_digits_takes_no_float_beyond_it(bound: float) -> None:
    """A bound is read as the next float, too."""
    for least, sign in ((0, 1), (-1000, -1)):
        for near in (nextafter(bound, 1e3), nextafter(bound, -1e3), bound, 5.0):
            ranged = {"type": "number", "minimum": least, "maximum": bound}
            if sign < 0:
                ranged = {"type": "number", "minimum": -bound, "maximum": 0}
            taken = _takes(JsonSchemaGrammar(ranged), repr(sign * near))
            assert not taken or near <= bound, (ranged, near)


@pytest.mark.parametrize("number", [0.1 + 0.2, 1 / 3, 5e-324, 123456789012345.0, 1e22, -2.5e-7])
def test_a_fraction_that_the_library_reads_as_it_is_is_taken(number: float) -> None:
    assert json.loads(BYTES.compile(JsonSchemaGrammar({"const": number})).shortest() or "") == number
    BYTES.compile(JsonSchemaGrammar({"type": "number", "maximum": 1.7976931348623157e308}))


def test_more_open_bounds_than_are_closed_still_tell_1_from_15_tenths() -> None:
    many = {f"n{n}": NUMBER | {"exclusiveMinimum": 1, "maximum": 1.5} for n in range(70)}
    schema = {"type": "object", "properties": many, "additionalProperties": False}
    assert _takes(JsonSchemaGrammar(schema), '{"n69":1.2}')
    assert not _takes(JsonSchemaGrammar(schema), '{"n69":1}')


@pytest.mark.parametrize("items", ["[0.1,0.10000000000000001]", "[1,1.0000000000000001]"])
def test_items_that_are_read_as_the_same_number_are_not_unique(items: str) -> None:
    unique = JsonSchemaGrammar({"type": "array", "items": {"type": "number"}, "uniqueItems": True})
    assert not _takes(unique, items)
    assert _takes(unique, "[9007199254740992,9007199254740993,0.1,0.2]")
