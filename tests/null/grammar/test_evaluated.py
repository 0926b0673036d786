"""What `unevaluatedProperties` leaves over beside patterns of names, against jsonschema."""

from __future__ import annotations

import json
from itertools import combinations
from typing import Any

import jsonschema
import pytest

from inferd_grammar import GrammarCompiler, JsonSchemaGrammar, TokenTable
from inferd_grammar.validation import SchemaValidator

BYTES = GrammarCompiler(TokenTable.of_bytes())
CLOSED: dict[str, Any] = {"unevaluatedProperties": False}
MARKED: dict[str, Any] = {"patternProperties": {"^x-": {"type": "integer"}}}
NAMED: dict[str, Any] = {"properties": {"a": True}}
EARLIER = "https://json-schema.org/draft/2019-09/schema"
NAMES = ("a", "b", "x-y")
SCHEMAS: list[dict[str, Any]] = [
    {**MARKED, **CLOSED},
    {**MARKED, **NAMED, "unevaluatedProperties": {"type": "string"}},
    {"allOf": [MARKED, NAMED], **CLOSED},
    {"$ref": "#/$defs/m", **CLOSED, "$defs": {"m": MARKED}},
    {"anyOf": [{**MARKED, "required": ["x-y"]}, NAMED], **CLOSED},
    {"oneOf": [{**MARKED, "required": ["x-y"]}, {**NAMED, "required": ["a"]}], **CLOSED},
    {"if": {"required": ["a"], **NAMED}, "then": MARKED, "else": {"properties": {"b": True}}, **CLOSED},
    {"if": {"required": ["b"]}, "then": True, **MARKED, **CLOSED},
    {"dependentSchemas": {"a": {**NAMED, **MARKED}}, **CLOSED},
    {"allOf": [{**MARKED, "additionalProperties": {"type": "integer"}}], **CLOSED},
    {"allOf": [{**MARKED, "unevaluatedProperties": {"type": "integer"}}], **CLOSED},
    {"not": MARKED, **NAMED, **CLOSED},
    {"$id": "https://a.example/", "$dynamicAnchor": "n", "$dynamicRef": "m", **CLOSED,
     "$defs": {"m": {"$id": "m", "$dynamicAnchor": "m", **MARKED}}},
    {"$schema": EARLIER, "$ref": "#/$defs/m", **CLOSED, "$defs": {"m": MARKED}},
]  # fmt: skip


@pytest.mark.parametrize("schema", SCHEMAS, ids=str)
def test_names_beside_patterns_are_looked_at_as_the_specification_says(schema: dict[str, Any]) -> None:
    """The validator refused such schemas, so that those of OpenAPI 3.1 and 3.2 did not compile."""
    validator = SchemaValidator(schema)
    other = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)(schema)
    for count in range(len(NAMES) + 1):
        for names in combinations(NAMES, count):
            for item in (1, "s"):
                value = dict.fromkeys(names, item)
                assert (validator.problem(json.dumps(value)) is None) == other.is_valid(value), value


@pytest.mark.parametrize(("name", "valid"), [("x-y", True), ("p", True), ("q", False)])
def test_a_recursive_reference_is_followed_to_where_the_schema_is_used(name: str, valid: bool) -> None:
    inner = {"$id": "inner", "$recursiveAnchor": True, "$recursiveRef": "#", **CLOSED}
    outer = {"$schema": EARLIER, "$id": "https://a.example/outer", "$recursiveAnchor": True, **MARKED}
    validator = SchemaValidator({**outer, "properties": {"p": {"$ref": "inner"}}, "$defs": {"inner": inner}})
    assert (validator.problem(json.dumps({"p": {name: {} if name == "p" else 1}})) is None) == valid


def test_patterns_of_names_are_searched_in_linear_time() -> None:
    validator = SchemaValidator({"patternProperties": {"^(a|a)*$": True}, **CLOSED})
    assert validator.problem(json.dumps({"a" * 40 + "b": 1})) is not None


def test_more_ways_than_a_rewrite_has_are_held_at_the_end_of_the_text() -> None:
    branches = [{"properties": {name: True}, **MARKED, "minProperties": n} for n, name in enumerate("abcdefg")]
    schema = {"type": "object", "anyOf": branches, **MARKED, **CLOSED}
    compiled = BYTES.compile(JsonSchemaGrammar(schema))
    assert compiled.refusal is not None
    for text, valid in ((b'{"x-1":1,"a":1}', True), (b'{"a":1}', True), (b'{"h":1}', False), (b'{"x-1":"s"}', False)):
        matcher = compiled.matcher()
        assert (matcher.accept([byte + 1 for byte in text]) == len(text) and matcher.may_end()) == valid, text
