"""`uniqueItems` in some branches of a union, which a property tells apart."""

from __future__ import annotations

import itertools
from typing import Any

import jsonschema
import pytest
from byte_texts import compact, takes

from inferd_grammar import (
    GrammarCompiler,
    JsonSchemaGrammar,
    TaggedGrammar,
    TagGrammar,
    TokenTable,
)

BYTES = GrammarCompiler(TokenTable.of_bytes())
SET = {"type": "array", "items": {"enum": [1, 2, 3, 4, 5, 6, 7]}, "uniqueItems": True}
LIST = {"type": "array", "items": {"enum": [1, 2, 3, 4, 5, 6, 7]}}


def kind(value: Any, **properties: Any) -> dict[str, Any]:
    names = {"kind": {"const": value}, **properties}
    return {"type": "object", "properties": names, "required": ["kind"]}


def late(value: Any, **properties: Any) -> dict[str, Any]:
    names = {**properties, "kind": {"const": value}}
    return {"type": "object", "properties": names, "required": ["kind"]}


INNER = {"type": "object", "properties": {"tags": {"type": "array", "items": SET}}}
UNIONS: dict[str, dict[str, Any]] = {
    "of a set and nothing": {"oneOf": [kind("a", tags=SET), kind("b")]},
    "of a set and a list": {"anyOf": [kind("a", tags=SET), kind("b", tags=LIST)]},
    "by numbers and words": {"oneOf": [kind(1, tags=SET), kind(True, tags=LIST), kind(None, tags=LIST)]},
    "beside an array": {"anyOf": [kind("a", tags=SET), kind("b"), {"type": "array", "items": {"type": "integer"}}]},
    "told behind the array": {"oneOf": [late("a", tags=SET), late("b", tags=LIST)]},
    "told behind an object with it": {"oneOf": [late("a", inner=INNER), late("b", inner={"type": "object"})]},
    "in an array": {"type": "array", "items": {"oneOf": [late("a", tags=SET), late("b", tags=LIST)]}},
}
KINDS: list[Any] = ["a", "b", 1, True, None]
TAGS = [[], [1], [1, 2], [1, 1]]
VALUES: list[Any] = [
    *({"kind": one, "tags": tags} for one, tags in itertools.product(KINDS, TAGS)),
    *({"tags": tags, "kind": one} for one, tags in itertools.product(KINDS, TAGS)),
    *({"inner": {"tags": [[3], tags]}, "kind": one} for one, tags in itertools.product("ab", TAGS)),
    [1, 1],
]


@pytest.mark.parametrize("union", UNIONS.values(), ids=UNIONS)
def test_what_a_property_tells_apart_is_not_left_to_the_end_of_the_text(union: dict[str, Any]) -> None:
    schema = JsonSchemaGrammar(union)
    assert BYTES.compile(schema).refusal is None
    validator = jsonschema.Draft202012Validator(union)
    for value in VALUES:
        # Keys come in the schema's order, which is one of two.
        orders = [value, dict(reversed(value.items()))] if isinstance(value, dict) else [value]
        if "items" in union:
            orders = [[{"tags": [1, 1], "kind": "b"}, order] for order in orders]
        assert any(takes(schema, compact(order)) for order in orders) == validator.is_valid(orders[0]), value


def test_and_holds_in_calls_of_tools_as_well() -> None:
    schema = JsonSchemaGrammar(UNIONS["of a set and nothing"])
    calls = TaggedGrammar((TagGrammar("<call>", schema, "</call>"),))
    assert takes(calls, '<call>{"kind":"b","tags":[1,1]}</call><call>{"kind":"a","tags":[1,2]}</call>')
    assert not takes(calls, '<call>{"kind":"a","tags":[1,1]}</call>')


def test_a_constant_that_a_draft_does_not_know_tells_nothing_apart() -> None:
    union = {"$schema": "http://json-schema.org/draft-04/schema#", "anyOf": [kind("a", tags=SET), kind("b", tags=LIST)]}
    assert not takes(JsonSchemaGrammar(union), '{"kind":"a","tags":[1,1,8]}')
    assert BYTES.compile(JsonSchemaGrammar(union)).refusal is not None


def test_names_that_a_pattern_finds_are_looked_at_in_all_branches() -> None:
    """`x` is a set in the first branch alone."""
    branches = [
        {"patternProperties": {"^x": {"type": "array", "uniqueItems": True}}, "required": ["a"]},
        {"additionalProperties": {"type": "array"}, "required": ["b"]},
    ]
    schema = {"type": "object", "anyOf": branches}
    assert takes(JsonSchemaGrammar(schema), '{"b":[],"x":[1,1]}')
    assert not takes(JsonSchemaGrammar(schema), '{"a":0,"x":[1,1]}')
