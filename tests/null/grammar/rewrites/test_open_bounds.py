"""Open bounds hold for numbers as they are read, which is as 64-bit floats."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from byte_texts import taken

from inferd_grammar import GrammarCompiler, JsonSchemaGrammar, TaggedGrammar, TagGrammar, TokenTable

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
