"""Soft ends of strings and arrays that a schema leaves open."""

from __future__ import annotations

from typing import Any

import pytest

from inferd import InvalidRequest, JsonSchema
from inferd_grammar import GrammarCompiler, JsonSchemaGrammar, TokenTable

BYTES = GrammarCompiler(TokenTable.of_bytes())
OPEN = {"type": "object", "properties": {"s": {"type": "string"}, "a": {"type": "array", "items": {"type": "integer"}}}}


def takes(schema: dict[str, Any], text: str, *, length: int = 5, items: int = 2) -> bool:
    matcher = BYTES.compile(JsonSchemaGrammar(schema, "strict", length, items)).matcher()
    ids = [byte + 1 for byte in text.encode()]
    return matcher.accept(ids) == len(ids) and matcher.may_end()


@pytest.mark.parametrize(
    ("schema", "text", "taken"),
    [
        (OPEN, '{"s":"12345","a":[1,2]}', True),
        (OPEN, '{"s":"123456"}', False),
        (OPEN, '{"a":[1,2,3]}', False),
        ({"type": "string", "maxLength": 9}, '"123456789"', True),
        ({"type": "string", "minLength": 7}, '"12345678901"', True),
        ({"type": "string", "enum": ["longer than that"]}, '"longer than that"', True),
        ({"type": "string", "format": "date"}, '"2024-01-31"', True),
        ({"type": "array", "maxItems": 4}, "[1,2,3,4]", True),
        ({"type": "array", "minItems": 3}, "[1,2,3]", True),
        ({"allOf": [{"type": "string"}, {"minLength": 8}]}, '"12345678"', True),
        ({"not": {"type": "string", "maxLength": 3}}, '"1234"', True),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, '"123456"', False),
    ],
)
def test_what_a_schema_leaves_open_ends(schema: dict[str, Any], text: str, taken: bool) -> None:
    assert takes(schema, text) == taken
    assert takes(schema, text, length=0, items=0) or not taken


def test_they_are_an_option_of_the_sdk() -> None:
    sent = JsonSchema(OPEN, soft_max_length=40, soft_max_items=8).constraint
    assert (sent.soft_max_length, sent.soft_max_items) == (40, 8)
    assert JsonSchema(OPEN).constraint.soft_max_length == 0
    with pytest.raises(InvalidRequest, match="soft_max_items"):
        JsonSchema(OPEN, soft_max_items=-1)
    with pytest.raises(InvalidRequest, match="mode strict"):
        JsonSchema(OPEN, mode="best_effort", soft_max_items=3)
