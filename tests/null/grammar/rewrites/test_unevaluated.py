"""Unevaluated members beside several keywords with branches."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from byte_texts import compact, taken

from inferd_grammar import GrammarCompiler, JsonSchemaGrammar, TokenTable

BYTES = GrammarCompiler(TokenTable.of_bytes())
OBJECTS: list[dict[str, Any]] = [
    *({"a": 1}, {"a": "s"}, {"b": 1}, {"x": 1}, {"x": 1, "a": 1}, {"x": 1, "a": "s"}, {"x": 1, "b": 1}, {"x": 1, "y": 1}),
    *({"x": 1, "y": 1, "a": 1}, {"x": 1, "y": 1, "a": 1, "b": 1}, {"x": 1, "a": 1, "c": 1}, {}),
]  # fmt: skip
EITHER = [{"properties": {"a": {"type": "integer"}}, "required": ["a"]}, {"properties": {"b": {}}, "required": ["b"]}]
OPEN: dict[str, Any] = {"type": "object", "properties": {"x": {}, "y": {}}, "unevaluatedProperties": False}


@pytest.mark.parametrize(
    "more",
    [
        {"oneOf": EITHER, "anyOf": [{"required": ["x"]}, {"required": ["y"]}]},
        {"anyOf": EITHER, "oneOf": [{"required": ["x"]}, {"required": ["y"]}]},
        {"anyOf": EITHER, "if": {"required": ["x"]}, "then": {"required": ["y"]}},
        {"anyOf": EITHER, "dependentSchemas": {"x": {"required": ["y"]}}},
        {
            "oneOf": EITHER,
            "dependentSchemas": {"a": {"required": ["x"]}, "y": {"properties": {"c": {}}, "required": ["c"]}},
        },
    ],
    ids=["anyOf", "oneOf", "if", "dependentSchemas", "one of two dependentSchemas"],
)
def test_branches_that_look_at_no_member_are_not_forgotten_beside_those_that_do(more: dict[str, Any]) -> None:
    schema = {**OPEN, **more}
    compiled = BYTES.compile(JsonSchemaGrammar(schema))
    validator = jsonschema.Draft202012Validator(schema)
    for value in OBJECTS:
        assert taken(compiled.matcher(), compact(value)) == validator.is_valid(value), value
